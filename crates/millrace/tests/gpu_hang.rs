//! A shader that runs far past its deadline, in a process of its own: it keeps the driver busy for a while.

#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, Instant};

use millrace::{Access, DeviceOptions, Error, HealthState, KernelSpec};

/// Work for many seconds on a software driver. It ends by itself, so that nothing is left behind for long.
fn endless() -> KernelSpec {
    KernelSpec::new("endless").binding::<u32>("out", Access::ReadWrite).block(64).wgsl(
        "
        @group(0) @binding(0) var<storage, read_write> out: array<u32>;
        @compute @workgroup_size(64)
        fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            var x = out[id.x % 64u] + id.x;
            for (var i = 0u; i < 60000u; i++) {
                x = x * 1664525u + 1013904223u;
                x ^= x >> 15u;
            }
            out[id.x % 64u] = x;
        }",
    )
}

#[test]
fn a_wait_on_a_device_that_hangs_ends_in_time_and_the_device_is_replaced() {
    let runtime = millrace::runtime();
    let options = DeviceOptions::default().timeout(Duration::from_millis(150));
    let Ok(device) = runtime.open_with("gpu", options) else { return };
    let software = device.info().details.iter().any(|(name, value)| name == "type" && value == "software");
    if !software {
        return; // a real one would need a shader that its watchdog does not end first
    }
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let (kernel, out) = (device.kernel(&endless()).unwrap(), device.allocate(256).unwrap());
    let start = Instant::now();
    let hanging = stream.submit(kernel.launch().bind(&out).grid(20_000)).unwrap();
    // Those with a deadline are told at their deadline, whichever stream they are on.
    for stream in [&stream, &other] {
        let (start, limit) = (Instant::now(), Duration::from_millis(60));
        let mut ticket = stream.submit_deadline(out.read(..), start + limit).unwrap();
        assert!(ticket.wait_for(Duration::from_secs(60)).is_err());
        assert!(start.elapsed() < limit + Duration::from_millis(50), "{:?}", start.elapsed());
    }
    // Compiling may block on a device that hangs. Whoever wants a kernel is told, and one that is there is there.
    let fresh = KernelSpec::new("fresh").block(1).wgsl("@compute @workgroup_size(1) fn main() {}");
    let ask = |spec: &KernelSpec| {
        let (start, made) = (Instant::now(), device.kernel(spec).map(|_| ()));
        (made, start.elapsed())
    };
    std::thread::scope(|scope| {
        let asked = [(); 2].map(|()| scope.spawn(|| ask(&fresh)));
        let (known, took) = ask(&endless());
        assert!(known.is_ok() && took < Duration::from_millis(100), "{known:?} after {took:?}");
        for asked in asked {
            let (made, took) = asked.join().unwrap();
            assert!(took < Duration::from_secs(2), "{made:?} after {took:?}");
        }
    });
    // Without one the device's timeout counts, and after three of those the device is lost.
    let waited = hanging.wait();
    assert!(matches!(waited, Err(Error::Stalled(_))), "{waited:?}");
    while device.health().state != HealthState::Lost {
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", device.health());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(matches!(stream.run(out.read(..)), Err(Error::DeviceLost(_))));
    // Another is opened while the first still hangs.
    let fresh = device.recover().unwrap();
    let (fresh_stream, buffer) = (fresh.stream().unwrap(), fresh.allocate(1024).unwrap());
    fresh_stream.enqueue(buffer.fill(.., 3)).unwrap();
    let mut ticket = fresh_stream.submit(buffer.read(..)).unwrap();
    assert_eq!(*ticket.wait_for(Duration::from_secs(20)).unwrap(), [3; 1024]);
    // Letting go of what belongs to the hanging one does not wait for it.
    let start = Instant::now();
    drop((out, kernel, stream, other, device));
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
}
