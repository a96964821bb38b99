//! All engines agree with the reference, whatever is in the room and whatever is done to it.
#![allow(clippy::unwrap_used, reason = "a test")]

use millrace::resident::{LaunchOptions, Residency};
use millrace::{Device, DeviceKind, Runtime};
use millrace_wave::{Boundary, Engine, Error, PerStep, Reference, Resident, Room, Scene, Setup, Source, State};

/// Every device that can be opened; the CPU with one thread as well as with all.
fn devices() -> Vec<Device> {
    let runtime = millrace::runtime();
    let found = runtime.devices().into_iter().filter(|found| found.unavailable.is_none());
    let mut devices: Vec<_> = found.map(|found| runtime.open(&found.id).unwrap()).collect();
    for threads in [1, 3] {
        let provider = millrace::cpu::CpuThreads(threads);
        devices.push(Runtime::new(vec![Box::new(provider)]).open("cpu").unwrap());
    }
    devices
}

/// Every engine on a device.
fn engines(device: &Device, room: &Room) -> Vec<Box<dyn Engine>> {
    let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(PerStep::on(device, room.clone()).unwrap())];
    let gpu = device.info().kind == DeviceKind::Gpu;
    // There it is one thread.
    if !gpu || room.cells() < 50_000 {
        engines.push(Box::new(Resident::on(device, room.clone()).unwrap()));
    }
    // In batches, everything is carried to and fro for every few messages.
    if gpu && room.cells() < 5000 {
        let options = LaunchOptions::default().residency(Residency::Batched);
        engines.push(Box::new(Resident::with(device, room.clone(), options).unwrap()));
    }
    engines
}

/// The same steps, bit by bit on the CPU; to 1e-5 of the largest pressure where the device may round otherwise.
fn assert_agrees(reference: &State, state: &State, device: &Device, what: &str) {
    let id = &device.info().id;
    if device.info().kind == DeviceKind::Cpu {
        return assert!(reference == state, "{what} on {id}");
    }
    let largest = reference.now.iter().fold(0f32, |most, p| most.max(p.abs()));
    for (a, b) in [(&reference.now, &state.now), (&reference.before, &state.before)] {
        let error = a.iter().zip(b).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(error <= 1e-5 * largest, "{what} on {id}: {error:e} of {largest:e}");
    }
}

fn rooms() -> Vec<(&'static str, Room)> {
    let tone = Scene::tone(6.0);
    let mut rooms = Vec::new();
    for boundary in [Boundary::Reflecting, Boundary::Absorbing] {
        for (name, scene) in [("empty", Scene::Empty), ("slits", Scene::Slits), ("ball", Scene::Ball)] {
            rooms.push((name, scene.setup(33, boundary, tone).build().unwrap()));
        }
        let sponge = |[x, y, z]: [u32; 3]| (x * 7 + y * 13 + z * 29) % 11 == 0 && x != 4;
        let setup = Setup::new([37, 5, 70]).boundary(boundary).obstacles(sponge).time_step(0.57 * 0.01 / 343.0);
        let sources = (0..8).map(|n| Source::ricker([4, 2, 8 * n + 3], 1.0 - 0.2 * n as f32, 3000.0));
        rooms.push(("sponge", sources.fold(setup, Setup::source).build().unwrap()));
        for size in [[1, 1, 1], [2, 1, 9], [1, 40, 1], [3, 3, 3]] {
            let source = Source::impulse([0; 3], 1.0);
            rooms.push(("small", Setup::new(size).boundary(boundary).source(source).build().unwrap()));
        }
    }
    // Walls that absorb a part.
    rooms.push(("partly", Scene::Ball.setup(20, Boundary::Absorbing, tone).admittance(0.3).build().unwrap()));
    // Large enough for several threads.
    rooms.push(("large", Scene::Slits.setup(90, Boundary::Absorbing, tone).build().unwrap()));
    rooms
}

#[test]
fn steps_agree() {
    for (name, room) in rooms() {
        let steps = if name == "large" { 12 } else { 60 };
        let mut reference = Reference::new(room.clone()).unwrap();
        reference.step(steps).unwrap();
        let expected = reference.state().unwrap();
        assert!(expected.now.iter().all(|p| p.is_finite()));
        for device in devices() {
            for mut engine in engines(&device, &room) {
                engine.step(steps).unwrap();
                let what = format!("{}: {name}, {:?}, {:?}", engine.name(), room.size(), room.boundary());
                assert_agrees(&expected, &engine.state().unwrap(), &device, &what);
                let energy = engine.energy().unwrap() / reference.energy().unwrap();
                assert!((energy - 1.0).abs() < 1e-4 || energy.is_nan(), "{what}: {energy}");
            }
        }
    }
}

/// Everything that can be done to an engine.
fn handle(engine: &mut dyn Engine) -> State {
    engine.inject([5, 6, 7], 1.0).unwrap();
    engine.step(5).unwrap();
    engine.set_obstacle([7, 6, 7], true).unwrap();
    engine.set_obstacle([0, 0, 0], true).unwrap();
    engine.set_obstacle([0, 0, 0], true).unwrap();
    engine.step(5).unwrap();
    engine.inject([12, 2, 3], -2.0).unwrap();
    engine.inject([12, 2, 3], 0.5).unwrap();
    engine.step(7).unwrap();
    engine.set_obstacle([7, 6, 7], false).unwrap();
    engine.step(8).unwrap();
    assert_eq!(engine.steps(), 25);
    assert!(engine.room().is_solid([0, 0, 0]) && !engine.room().is_solid([7, 6, 7]));
    assert_eq!(engine.pressure([0, 0, 0]).unwrap(), 0.0);
    engine.finish().unwrap();
    engine.state().unwrap()
}

#[test]
fn engines_can_be_handled_while_they_run() {
    let room = Setup::new([16, 12, 14]).boundary(Boundary::Absorbing).obstacle([3, 3, 3]).build().unwrap();
    let mut reference = Reference::new(room.clone()).unwrap();
    let expected = handle(&mut reference);
    for device in devices() {
        for mut engine in engines(&device, &room) {
            assert_eq!(engine.device(), Some(&*device.info().id));
            let state = handle(&mut *engine);
            assert_agrees(&expected, &state, &device, engine.name());
            for (z, plane) in state.now.chunks(16 * 12).enumerate() {
                assert_eq!(engine.plane(z as u32).unwrap(), plane);
            }
            assert_eq!(engine.pressure([9, 4, 2]).unwrap(), state.now[(2 * 12 + 4) * 16 + 9]);
        }
    }
}

#[test]
fn a_state_can_be_taken_from_one_engine_to_another() {
    let room = Setup::new([10, 11, 12]).obstacle([5, 5, 5]).build().unwrap();
    let cells = room.cells();
    let mut state = State { now: vec![0.25; cells], before: vec![0.5; cells] };
    let mut reference = Reference::new(room.clone()).unwrap();
    reference.load(&state).unwrap();
    assert_eq!(reference.pressure([5, 5, 5]).unwrap(), 0.0, "obstacles have no pressure");
    for device in devices() {
        for mut engine in engines(&device, &room) {
            engine.load(&state).unwrap();
            assert_eq!(engine.state().unwrap(), Reference::state(&mut reference).unwrap());
            engine.step(2).unwrap();
            engine.load(&state).unwrap();
            assert_eq!(engine.state().unwrap(), Reference::state(&mut reference).unwrap());
        }
    }
    let wrong = Error::WrongLength { given: cells - 1, expected: cells };
    let short = |cells: &[f32]| cells[1..].to_vec();
    // A state that does not fit changes nothing, whichever half of it is wrong.
    state.now.fill(2.0);
    state.before.fill(3.0);
    let states = [
        State { now: short(&state.now), before: state.before.clone() },
        State { now: state.now.clone(), before: short(&state.before) },
    ];
    let kept = reference.state().unwrap();
    let mut all: Vec<Box<dyn Engine>> = vec![Box::new(reference)];
    for device in devices() {
        let mut engines = engines(&device, &room);
        engines.iter_mut().for_each(|engine| engine.load(&kept).unwrap());
        all.append(&mut engines);
    }
    for mut engine in all {
        for state in &states {
            assert_eq!(engine.load(state), Err(wrong.clone()));
            assert_eq!(engine.state().unwrap(), kept, "{}", engine.name());
        }
    }
}

/// Of the memory for resident kernels, one of these takes more than half.
#[test]
fn a_state_is_loaded_where_a_device_has_room_for_one_kernel_only() {
    let room = Setup::new([96; 3]).build().unwrap();
    let cells = room.cells();
    for device in devices().into_iter().filter(|device| device.info().kind == DeviceKind::Gpu) {
        let mut engine = Resident::on(&device, room.clone()).unwrap();
        assert!(Resident::on(&device, room.clone()).is_err(), "two would fit: the room is too small for this test");
        for value in [0.25, 0.5] {
            engine.load(&State { now: vec![value; cells], before: vec![-value; cells] }).unwrap();
            assert_eq!(engine.pressure([95, 0, 95]).unwrap(), value);
        }
        engine.inject([1, 2, 3], 1.0).unwrap();
        assert_eq!(engine.pressure([1, 2, 3]).unwrap(), 1.5, "it is handled as before");
    }
}

#[test]
fn what_an_engine_cannot_do_it_says_and_stays_as_it_is() {
    let room = Setup::new([8, 9, 10]).source(Source::impulse([1, 1, 1], 1.0)).obstacle([2, 2, 2]).build().unwrap();
    let size = [8, 9, 10];
    let mut all: Vec<Box<dyn Engine>> = vec![Box::new(Reference::new(room.clone()).unwrap())];
    for device in devices() {
        all.extend(engines(&device, &room));
    }
    for mut engine in all {
        let state = engine.state().unwrap();
        let outside = |what, cell| Error::Outside { what, cell, size };
        assert_eq!(engine.inject([8, 0, 0], 1.0), Err(outside("source", [8, 0, 0])));
        assert_eq!(engine.inject([2, 2, 2], 1.0), Err(Error::Blocked([2, 2, 2])));
        assert!(matches!(engine.inject([3, 3, 3], f32::NAN), Err(Error::NotFinite { .. })));
        assert_eq!(engine.set_obstacle([0, 9, 0], true), Err(outside("obstacle", [0, 9, 0])));
        assert_eq!(engine.set_obstacle([1, 1, 1], true), Err(Error::Blocked([1, 1, 1])));
        assert_eq!(engine.pressure([0, 0, 10]), Err(outside("cell", [0, 0, 10])));
        assert_eq!(engine.plane(10), Err(outside("cell", [0, 0, 10])));
        assert_eq!(engine.state().unwrap(), state);
    }
}

#[test]
fn a_device_that_cannot_hold_the_room_says_so() {
    let options = millrace::DeviceOptions::default().budget(1 << 20);
    let device = millrace::runtime().open_with("cpu", options).unwrap();
    let error = PerStep::on(&device, Setup::new([128; 3]).build().unwrap()).unwrap_err();
    assert!(matches!(error, Error::Device(millrace::Error::OutOfMemory { .. })), "{error}");
    assert!(!error.is_callers());
}

#[test]
fn a_device_that_is_gone_is_an_error_not_a_wrong_field() {
    let device = millrace::runtime().open("cpu").unwrap();
    let mut engine = PerStep::on(&device, Setup::new([8; 3]).build().unwrap()).unwrap();
    engine.step(3).unwrap();
    engine.finish().unwrap();
    let fresh = device.recover().unwrap();
    assert!(engine.step(1).is_err());
    assert!(matches!(engine.state(), Err(Error::Device(millrace::Error::DeviceLost(_)))));
    PerStep::on(&fresh, engine.room().clone()).unwrap().step(1).unwrap();
}
