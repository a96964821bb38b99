//! Once everything has grown to its size, commands and buffers allocate nothing.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use millrace::prelude::*;
use support::{only_wait, workers};

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTING.load(Ordering::Relaxed) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One at a time: all threads of the process are counted, the device's too.
static ALONE: Mutex<()> = Mutex::new(());

const WARM_UP: usize = 2000;
const COUNTED: usize = 2000;

/// The harness, or the system's first wake-up of some thread, may allocate once in a while; a command that allocates
/// shows in every try.
#[track_caller]
fn assert_allocates_nothing(mut work: impl FnMut()) {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    (0..WARM_UP).for_each(|_| work());
    let mut fewest = usize::MAX;
    for _ in 0..5 {
        ALLOCATIONS.store(0, Ordering::SeqCst);
        COUNTING.store(true, Ordering::SeqCst);
        (0..COUNTED).for_each(|_| work());
        COUNTING.store(false, Ordering::SeqCst);
        fewest = fewest.min(ALLOCATIONS.load(Ordering::SeqCst));
        if fewest == 0 {
            return;
        }
    }
    panic!("{COUNTED} rounds made {fewest} allocations");
}

fn doubling(device: &Device) -> Kernel {
    let spec = KernelSpec::new("double")
        .binding::<u32>("x", Access::Read)
        .binding::<u32>("y", Access::Overwrite)
        .params::<u32>()
        .cpu(CpuKernel::per_group(|group| {
            let (x, y) = (group.input::<u32>(0), group.output::<u32>(1));
            let (start, factor) = (group.start(1), group.params::<u32>());
            y.iter_mut().enumerate().for_each(|(i, y)| *y = factor.wrapping_mul(x[start + i]));
        }));
    device.kernel(&spec).unwrap()
}

#[test]
fn a_submitted_command_and_its_ticket_allocate_nothing() {
    let device = workers(1);
    let stream = device.stream().unwrap();
    assert_allocates_nothing(|| stream.submit(Synchronize).unwrap().wait().unwrap());
    assert_allocates_nothing(|| only_wait(stream.submit(Synchronize).unwrap()).unwrap());
    assert_allocates_nothing(|| drop(stream.submit(Synchronize).unwrap()));
}

#[test]
fn a_write_of_shared_bytes_allocates_nothing() {
    let device = workers(1);
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(64).unwrap());
    let bytes = Bytes::from(vec![1; 64]);
    let _shared = bytes.clone(); // the first clone makes it shared
    assert_allocates_nothing(|| stream.submit(buffer.write(0, bytes.clone())).unwrap().wait().unwrap());
    assert_allocates_nothing(|| stream.run(buffer.write(0, bytes.clone())).unwrap());
    assert_allocates_nothing(|| stream.run(buffer.fill(.., 3)).unwrap());
    assert_allocates_nothing(|| drop(stream.run(buffer.read(..)).unwrap()));
    assert_allocates_nothing(|| stream.run(buffer.copy_to(0..8, &buffer, 16)).unwrap());
}

#[test]
fn a_launch_allocates_nothing() {
    let device = workers(1);
    let (stream, kernel) = (device.stream().unwrap(), doubling(&device));
    let (x, y) = (device.allocate(256).unwrap(), device.allocate(256).unwrap());
    let launch = || kernel.launch().bind(&x).bind(&y).params(&2u32).over(64, 64);
    assert_allocates_nothing(|| stream.submit(launch()).unwrap().wait().unwrap());
    assert_allocates_nothing(|| stream.run(launch()).unwrap());
}

#[test]
fn a_batch_of_commands_allocates_nothing() {
    let device = workers(1);
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(64).unwrap());
    let mut tickets = Vec::with_capacity(64);
    assert_allocates_nothing(|| {
        tickets.extend((0..64).map(|n| stream.submit(buffer.fill(.., n)).unwrap()));
        tickets.drain(..).for_each(|ticket| ticket.wait().unwrap());
    });
}

#[test]
fn a_recycled_buffer_allocates_nothing() {
    let device = workers(1);
    let stream = device.stream().unwrap();
    assert_allocates_nothing(|| {
        let (small, large) = (device.allocate(100).unwrap(), device.allocate(1 << 20).unwrap());
        let clone = small.clone();
        stream.run(clone.fill(.., 1)).unwrap();
        drop((small, large, clone));
    });
}
