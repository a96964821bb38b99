#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::atomic::AtomicBool;

use millrace::{DeviceKind, Found, Provider, cpu::CpuThreads};

use super::*;

/// What never takes that long, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);

/// A processor that can be opened as long as it is there.
struct There(Arc<AtomicBool>);

impl Provider for There {
    fn list(&self) -> Vec<Found> {
        let (id, name) = ("cpu".to_owned(), "here today".to_owned());
        vec![Found { id, kind: DeviceKind::Cpu, name, unavailable: None }]
    }

    fn open(&self, id: &str) -> millrace::Result<millrace::Engine> {
        if self.0.load(Ordering::Relaxed) {
            return CpuThreads(1).open(id);
        }
        Err(millrace::Error::NoSuchDevice { wanted: id.into(), known: "it was unplugged".into() })
    }
}

fn settings(size: u32, device: &str, engine: How) -> Settings {
    Settings {
        size,
        device: device.to_owned(),
        engine,
        scene: Content::Empty,
        speed: 1,
        damping: 1.0,
        wavelength: 8.0,
        slice: size / 2,
        paused: false,
    }
}

fn until(what: &str, mut look: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !look() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The line of JSON that a frame begins with, and how many cells follow.
fn read(frame: &Bytes) -> (serde_json::Value, usize) {
    let length = 4 + u32::from_le_bytes(*frame.first_chunk().unwrap()) as usize;
    (serde_json::from_slice(&frame[4..length]).unwrap(), frame.len() - length)
}

#[test]
fn that_a_device_cannot_be_opened_again_is_shown_until_it_can() {
    let there = Arc::new(AtomicBool::new(true));
    let runtime = Runtime::new(vec![Box::new(There(there.clone()))]);
    let world = World::start(runtime, settings(8, "cpu", How::Launch)).unwrap();
    until("a frame", || world.status().frames > 0);
    there.store(false, Ordering::Relaxed);
    assert!(world.order(Order::Destroy));
    until("why nothing moves", || {
        world.status().notice.contains("cannot be opened again") && {
            let frame = world.frames.borrow().flat.clone();
            let (status, cells) = read(&frame);
            let notice = status["notice"].as_str().unwrap();
            cells == 64 && notice.contains("cannot be opened again") && notice.contains("it was unplugged")
        }
    });
    let steps = world.status().steps;
    there.store(true, Ordering::Relaxed);
    until("a recovery", || world.status().recoveries == 1 && world.status().steps > steps);
}

#[test]
fn a_room_that_leaves_no_room_for_another_can_be_changed_and_recovered() {
    let runtime = millrace::runtime();
    if runtime.open("gpu").is_err() {
        return;
    }
    let mut paused = settings(96, "gpu", How::Resident);
    paused.paused = true; // a step of so large a room takes one thread of a device long
    let world = World::start(runtime, paused).unwrap();
    until("a frame", || world.status().frames > 0);
    assert!(world.order(Order::Set(Change { damping: Some(0.5), ..Change::default() })));
    until("the other walls", || world.status().settings.damping == 0.5);
    assert!(world.order(Order::Inject { cell: [48; 3], amount: 1.0 }));
    assert!(world.order(Order::Destroy));
    until("a recovery", || {
        let status = world.status();
        assert!(!status.notice.contains("cannot be"), "{}", status.notice);
        status.recoveries == 1
    });
    let frames = world.status().frames;
    until("frames", || world.status().frames > frames);
}
