//! Whatever lies in the slots of a kernel, it goes on and so does the host.
#![no_main]

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use libfuzzer_sys::fuzz_target;
use millrace_core::{Device, Runtime};
use millrace_cpu::CpuProvider;
use millrace_resident::{Handler, Launch, LaunchOptions, Message, Scope};

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Number {
    value: u32,
}

struct Double;

impl Handler for Double {
    type Message = Number;
    type Reply = Number;
    type State = ();
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), number: &Number, _: &mut Scope<'_, Number>) -> Number {
        Number { value: number.value.wrapping_mul(2) }
    }
}

fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| Runtime::new(vec![Box::new(CpuProvider)]).open("cpu").expect("there is a CPU"))
}

fuzz_target!(|bytes: &[u8]| {
    let double = device().launch(Double, LaunchOptions::default().inactive().inbound(8)).expect("it can be launched");
    let layout = double.region_layout();
    for (n, slot) in bytes.chunks(layout.in_stride * 4 - 4).take(7).enumerate() {
        double.send(Number { value: 1 }).expect("there is room");
        let at = layout.normal_first() + n * layout.in_stride + 1; // all but the sequence
        for (word, value) in slot.chunks_exact(4).enumerate() {
            let value = u32::from_le_bytes(value.try_into().expect("four bytes"));
            // SAFETY: the word is inside the region, which is reached with atomics only.
            unsafe { AtomicU32::from_ptr(double.region().as_ptr().add(at + word)) }.store(value, Ordering::Relaxed);
        }
    }
    double.activate().expect("it is alive");
    let deadline = Instant::now() + Duration::from_secs(10);
    assert_eq!(double.ask_deadline(Number { value: 4 }, deadline).expect("it is still alive").value, 8);
    while double.try_receive().is_some() {}
});
