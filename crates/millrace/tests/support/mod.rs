//! What the tests share.
#![allow(dead_code, reason = "every file uses some of it")]

pub(crate) mod resident;

use std::{
    sync::{
        Arc, Condvar, Mutex,
        mpsc::{self, Receiver},
    },
    time::{Duration, Instant},
};

use millrace::{
    Launch,
    cpu::CpuProvider,
    faulty::{Faults, FaultyProvider},
    prelude::*,
};

/// How late a deadline may be noticed.
const TOLERANCE: Duration = Duration::from_millis(50);
/// What never takes that long, however busy the machine is.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) fn cpu() -> Device {
    cpu_with(DeviceOptions::default())
}

/// The CPU device, or, with `MILLRACE_TEST_DEVICE=queued`, the same behind a queue of its own as a GPU has it.
pub(crate) fn cpu_with(options: DeviceOptions) -> Device {
    let runtime = if is_queued() {
        Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, Faults::default()).depth(1))])
    } else {
        millrace::runtime()
    };
    runtime.open_with("cpu", options).unwrap()
}

/// Whether the device has a queue of its own: its kernels run one after the other, on no thread of ours.
pub(crate) fn is_queued() -> bool {
    std::env::var("MILLRACE_TEST_DEVICE").is_ok_and(|device| device == "queued")
}

pub(crate) fn workers(n: usize) -> Device {
    cpu_with(DeviceOptions::default().workers(n))
}

/// A deadline for what has to happen.
pub(crate) fn soon() -> Instant {
    Instant::now() + LONG
}

/// A kernel that binds nothing.
pub(crate) fn kernel(device: &Device, code: impl Fn() + Send + Sync + 'static) -> Kernel {
    device.kernel(&KernelSpec::new("test").cpu(CpuKernel::whole(move |_| code()))).unwrap()
}

/// A kernel that fails by panicking with `message`.
pub(crate) fn panics(device: &Device, message: &'static str) -> Kernel {
    kernel(device, move || std::panic::panic_any(message))
}

/// Waits without running the stream's commands on this thread, as [`Ticket::wait`] might.
pub(crate) fn only_wait<T: millrace::Answer>(mut ticket: Ticket<T>) -> Result<T, Error> {
    ticket.wait_until(soon())
}

/// A kernel that says when it runs and then holds its worker until it is told to go on.
pub(crate) struct Gate {
    kernel: Kernel,
    entered: Receiver<()>,
    is_open: Arc<(Mutex<bool>, Condvar)>,
}

impl Gate {
    pub(crate) fn new(device: &Device) -> Self {
        let is_open = Arc::new((Mutex::new(false), Condvar::new()));
        let (enter, entered) = mpsc::channel();
        let shared = is_open.clone();
        let kernel = kernel(device, move || {
            enter.send(()).ok();
            let (is_open, changed) = &*shared;
            drop(changed.wait_while(is_open.lock().unwrap(), |open| !*open).unwrap());
        });
        Self { kernel, entered, is_open }
    }

    /// A gate that holds the stream from now on.
    pub(crate) fn across(device: &Device, stream: &Stream) -> (Self, Ticket) {
        let gate = Self::new(device);
        let ticket = stream.submit(gate.launch()).unwrap();
        gate.until_entered();
        (gate, ticket)
    }

    pub(crate) fn launch(&self) -> Launch {
        self.kernel.launch()
    }

    pub(crate) fn until_entered(&self) {
        self.entered.recv_timeout(LONG).unwrap();
    }

    pub(crate) fn open(&self) {
        *self.is_open.0.lock().unwrap() = true;
        self.is_open.1.notify_all();
    }
}

/// A test that fails must not leave a device waiting.
impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// A kernel that writes down the number of its launch.
pub(crate) struct Log {
    kernel: Kernel,
    seen: Arc<Mutex<Vec<u32>>>,
}

impl Log {
    pub(crate) fn new(device: &Device) -> Self {
        Self::beside(device, Arc::default())
    }

    /// A log on another device that writes into the same book.
    pub(crate) fn also_on(&self, device: &Device) -> Self {
        Self::beside(device, self.seen.clone())
    }

    fn beside(device: &Device, seen: Arc<Mutex<Vec<u32>>>) -> Self {
        let book = seen.clone();
        let code = CpuKernel::whole(move |launch| book.lock().unwrap().push(launch.params::<u32>()));
        let kernel = device.kernel(&KernelSpec::new("log").params::<u32>().cpu(code)).unwrap();
        Self { kernel, seen }
    }

    pub(crate) fn launch(&self, number: u32) -> Launch {
        self.kernel.launch().params(&number)
    }

    pub(crate) fn seen(&self) -> Vec<u32> {
        self.seen.lock().unwrap().clone()
    }
}

/// Runs `wait`, which must come back at the deadline it is given. A machine that was busy elsewhere gets another try;
/// what is never in time fails.
pub(crate) fn assert_in_time(timeout: Duration, mut wait: impl FnMut(Instant)) {
    let mut worst = Duration::ZERO;
    for _ in 0..5 {
        let deadline = Instant::now() + timeout;
        wait(deadline);
        let end = Instant::now();
        assert!(end >= deadline, "came back {:?} early", deadline - end);
        worst = end - deadline;
        if worst <= TOLERANCE {
            return;
        }
    }
    panic!("came back {worst:?} late");
}

/// Asks over and over until it is so.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = soon();
    while !is_so() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::yield_now();
    }
}
