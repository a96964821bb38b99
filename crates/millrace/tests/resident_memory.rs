//! The memory that a resident kernel has besides its state, on every device.
#![allow(clippy::unwrap_used, reason = "a test")]

use millrace::{
    DeviceKind,
    prelude::*,
    resident::{Error, Residency, RestartPolicy},
};

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Swap {
    at: u32,
    value: u32,
}

/// A table of words, numbered from `first`.
struct Table {
    first: u32,
    words: u32,
}

impl Handler for Table {
    type Message = Swap;
    type Reply = Swap;
    type State = Swap;
    const WGSL: Option<&'static str> = Some(
        "
        (*state).value += 1u;
        let old = load(message.at);
        store(message.at, message.value);
        return Swap((*state).value, old);
        ",
    );
    fn state(&self) -> Swap {
        Swap { at: 0, value: 0 }
    }
    fn memory(&self) -> Vec<u32> {
        (self.first..self.first + self.words).collect()
    }
    fn handle(&mut self, state: &mut Swap, message: &Swap, scope: &mut Scope<'_, Swap>) -> Swap {
        assert_ne!(message.value, 13);
        state.value += 1;
        let word = scope.memory().get_mut(message.at as usize);
        Swap { at: state.value, value: word.map_or(0, |word| std::mem::replace(word, message.value)) }
    }
}

/// Every device, and every way of staying there.
fn places() -> Vec<(Device, LaunchOptions)> {
    let (runtime, options) = (millrace::runtime(), LaunchOptions::default());
    let mut places = Vec::new();
    for found in runtime.devices().into_iter().filter(|found| found.unavailable.is_none()) {
        let device = runtime.open(&found.id).unwrap();
        if device.info().kind == DeviceKind::Gpu {
            places.push((device.clone(), options.clone().residency(Residency::Batched)));
        }
        places.push((device, options.clone()));
    }
    places
}

#[test]
fn words_stay_and_those_of_others_are_out_of_reach() {
    for (device, options) in places() {
        let words = 5000;
        let tables = [0, 1 << 20].map(|first| device.launch(Table { first, words }, options.clone()).unwrap());
        let swap = |table: usize, at: u32, value: u32| tables[table].ask(Swap { at, value }).unwrap();
        for at in (0..words).step_by(601).chain([words - 1]) {
            assert_eq!(swap(0, at, at * 3).value, at);
            assert_eq!(swap(1, at, 1).value, (1 << 20) + at);
            assert_eq!(swap(0, at, 7).value, at * 3);
        }
        // Beyond the end is nothing, however far.
        for at in [words, words + 1, 1 << 22, u32::MAX - 3, u32::MAX] {
            assert_eq!((swap(0, at, 99).value, swap(0, at, 98).value), (0, 0));
        }
        let answered = swap(1, 1, 0);
        assert_eq!((answered.value, answered.at), ((1 << 20) + 1, 11), "the state goes its own way");
        drop(tables);
        // A new kernel finds what it brings, not what was there.
        let table = device.launch(Table { first: 9, words }, options).unwrap();
        assert_eq!(table.ask(Swap { at: 601, value: 0 }).unwrap().value, 610);
    }
}

#[test]
fn what_does_not_fit_is_said() {
    for (device, options) in places() {
        let both = device.launch(Table { first: 0, words: 1 }, options.clone().checkpoint_every(1));
        assert!(matches!(both, Err(Error::Invalid(_))));
        if device.info().kind == DeviceKind::Gpu {
            let large = device.launch(Table { first: 0, words: 1 << 23 }, options);
            assert!(matches!(large, Err(Error::NoRoom { .. })));
        }
    }
}

#[test]
fn after_a_restart_it_is_as_at_the_start() {
    let device = millrace::runtime().open("cpu").unwrap();
    let options = LaunchOptions::default().restart(RestartPolicy::UpTo(1));
    let table = device.launch(Table { first: 40, words: 3 }, options).unwrap();
    assert_eq!(table.ask(Swap { at: 2, value: 5 }).unwrap().value, 42);
    assert!(matches!(table.ask(Swap { at: 0, value: 13 }), Err(Error::Panicked(_))));
    assert_eq!(table.ask(Swap { at: 2, value: 5 }).unwrap().value, 42);
}
