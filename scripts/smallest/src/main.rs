//! The smallest program with a resident kernel. It says how long it took from the start of `main` until the kernel ran, and
//! until its first answer, and that a panic in a handler is still caught.

use std::time::Instant;

use millrace_core::Runtime;
use millrace_cpu::CpuProvider;
use millrace_resident::{Error, Handler, Launch, LaunchOptions, Message, Scope, Status};

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Pair {
    a: f32,
    b: f32,
}

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Sum {
    value: f32,
}

struct Adder;

impl Handler for Adder {
    type Message = Pair;
    type Reply = Sum;
    type State = ();
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), pair: &Pair, _: &mut Scope<'_, Sum>) -> Sum {
        assert!(pair.a.is_finite(), "not a number");
        Sum { value: pair.a + pair.b }
    }
}

fn main() -> Result<(), Error> {
    let start = Instant::now();
    let device = Runtime::new(vec![Box::new(CpuProvider)]).open("cpu")?;
    let adder = device.launch(Adder, LaunchOptions::default())?;
    adder.wait_for(Status::Active, start + std::time::Duration::from_secs(5))?;
    let running = start.elapsed();
    let sum = adder.ask(Pair { a: 1.5, b: 2.0 })?;
    let answered = start.elapsed();
    assert_eq!(sum.value, 3.5);
    println!("running_us {:.1}", running.as_secs_f64() * 1e6);
    println!("answered_us {:.1}", answered.as_secs_f64() * 1e6);
    std::panic::set_hook(Box::new(|_| ()));
    let failed = adder.ask(Pair { a: f32::NAN, b: 0.0 }).err();
    assert!(matches!(failed, Some(Error::Panicked(_))), "a panic was not caught: {failed:?}");
    Ok(())
}
