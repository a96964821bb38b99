//! Memory: what is never written reads as zero, views never change, the accounts are exact.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    thread,
};

use bytes::Bytes;
use millrace::prelude::*;
use proptest::prelude::*;
use support::{cpu, cpu_with};

fn read(stream: &Stream, buffer: &Buffer) -> View {
    stream.run(buffer.read(..)).unwrap()
}

/// A buffer of memory that was used before, and is full of old bytes.
fn recycled(device: &Device, stream: &Stream, len: usize) -> Buffer {
    let old = device.allocate(len).unwrap();
    stream.run(old.fill(.., 0xEE)).unwrap();
    drop(old);
    let hits = device.memory().hits;
    let new = device.allocate(len).unwrap();
    assert_eq!(device.memory().hits, hits + 1, "the memory is not used again");
    new
}

#[test]
fn a_buffer_that_was_dropped_is_the_next_of_its_size() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let first = device.allocate(1000).unwrap();
    let address = read(&stream, &first).as_ptr();
    drop(first);
    let second = device.allocate(1024).unwrap(); // the same class
    assert_eq!(read(&stream, &second).as_ptr(), address);
    let third = device.allocate(1000).unwrap();
    assert_ne!(read(&stream, &third).as_ptr(), address);
}

#[test]
fn a_recycled_buffer_shows_no_old_bytes() {
    let device = cpu();
    let stream = device.stream().unwrap();
    for len in [1, 255, 256, 1000, 300_000] {
        assert!(read(&stream, &recycled(&device, &stream, len)).iter().all(|b| *b == 0), "{len}");
        // In whatever order its parts are read and written.
        let buffer = recycled(&device, &stream, len);
        let (a, b) = (len / 3, len / 3 * 2);
        assert!(stream.run(buffer.read(a..b)).unwrap().iter().all(|b| *b == 0));
        stream.run(buffer.write(len - 1, vec![1])).unwrap();
        let bytes = read(&stream, &buffer);
        assert!(bytes[..len - 1].iter().all(|b| *b == 0) && bytes[len - 1] == 1, "{len}");
    }
}

#[test]
fn a_recycled_buffer_shows_no_old_bytes_between_scattered_writes() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let places = [500usize, 100, 900, 0, 700, 1023];
    let buffer = recycled(&device, &stream, 1024);
    let mut expected = vec![0; 1024];
    for at in places {
        stream.run(buffer.write(at, vec![7])).unwrap();
        expected[at] = 7;
    }
    assert_eq!(&*read(&stream, &buffer), expected);
}

#[test]
fn a_write_of_nothing_defines_nothing() {
    let device = cpu();
    let stream = device.stream().unwrap();
    for at in [0, 500, 1000] {
        let (buffer, other) = (recycled(&device, &stream, 1000), device.allocate(1000).unwrap());
        stream.run(buffer.write(200, vec![7; 10])).unwrap();
        stream.run(buffer.write(at, Bytes::new())).unwrap();
        stream.run(buffer.fill(at..at, 1)).unwrap();
        stream.run(other.copy_to(at..at, &buffer, at)).unwrap();
        let bytes = read(&stream, &buffer);
        let expected: Vec<u8> = (0..1000).map(|i| if (200..210).contains(&i) { 7 } else { 0 }).collect();
        assert_eq!(&*bytes, expected, "old bytes after an empty write at {at}");
    }
}

/// A kernel that copies its first binding to its second.
fn copier(device: &Device, from: Access, to: Access) -> Kernel {
    let spec = KernelSpec::new("copy").binding::<u8>("from", from).binding::<u8>("to", to).cpu(CpuKernel::whole(
        move |launch| {
            let to_bytes = launch.output::<u8>(1);
            match from {
                Access::Read => to_bytes.copy_from_slice(launch.input::<u8>(0)),
                _ => to_bytes.copy_from_slice(launch.output::<u8>(0)),
            }
        },
    ));
    device.kernel(&spec).unwrap()
}

#[test]
fn a_kernel_sees_no_old_bytes_whatever_its_access() {
    let device = cpu();
    let stream = device.stream().unwrap();
    for from in [Access::Read, Access::ReadWrite] {
        for written in [0..0, 10..20] {
            let copy = copier(&device, from, Access::Overwrite);
            let (source, target) = (recycled(&device, &stream, 3000), device.allocate(3000).unwrap());
            stream.run(source.fill(written.clone(), 5)).unwrap();
            stream.run(copy.launch().bind(&source).bind(&target)).unwrap();
            let expected: Vec<u8> = (0..3000).map(|i| if written.contains(&i) { 5 } else { 0 }).collect();
            assert_eq!(&*read(&stream, &target), expected);
            assert_eq!(&*read(&stream, &source), expected);
        }
    }
}

#[test]
fn a_kernel_that_binds_a_part_leaves_the_rest_zero() {
    let device = cpu();
    let stream = device.stream().unwrap();
    for access in [Access::ReadWrite, Access::Overwrite] {
        let copy = copier(&device, Access::Read, access);
        let (source, target) = (device.allocate(100).unwrap(), recycled(&device, &stream, 1000));
        stream.run(source.fill(.., 3)).unwrap();
        stream.run(target.fill(900..910, 4)).unwrap();
        stream.run(copy.launch().bind(&source).bind(target.slice(400..500))).unwrap();
        let expected: Vec<u8> = (0..1000)
            .map(|i| match i {
                400..500 => 3,
                900..910 => 4,
                _ => 0,
            })
            .collect();
        assert_eq!(&*read(&stream, &target), expected);
    }
}

#[test]
fn a_kernel_that_fails_to_overwrite_shows_no_old_bytes() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let panics = KernelSpec::new("panics").binding::<u8>("x", Access::Overwrite).cpu(CpuKernel::per_group(|group| {
        assert!(group.index < 2, "half way");
        group.output::<u8>(0).fill(1);
    }));
    let buffer = recycled(&device, &stream, 1000);
    let launch = device.kernel(&panics).unwrap().launch().bind(&buffer).over(1000, 100);
    assert!(stream.run(launch).is_err());
    assert!(!read(&stream, &buffer).contains(&0xEE), "after a panic");
}

#[test]
fn a_grid_that_does_not_cover_its_output_shows_no_old_bytes() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let ones = KernelSpec::new("ones")
        .binding::<u8>("x", Access::Overwrite)
        .cpu(CpuKernel::per_group(|group| group.output::<u8>(0).fill(1)));
    let buffer = recycled(&device, &stream, 1000);
    stream.run(device.kernel(&ones).unwrap().launch().bind(&buffer).over(600, 100)).unwrap();
    let wrong =
        read(&stream, &buffer).iter().enumerate().find(|(i, b)| **b != u8::from(*i < 600)).map(|(i, b)| (i, *b));
    assert_eq!(wrong, None);
}

#[test]
fn a_view_never_changes_and_the_buffer_goes_on() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let buffer = device.allocate(1000).unwrap();
    let mut views = Vec::new();
    for n in 0..10u8 {
        stream.run(buffer.fill(n as usize * 100..(n as usize + 1) * 100, n + 1)).unwrap();
        views.push(read(&stream, &buffer));
    }
    for (n, view) in views.iter().enumerate() {
        let expected: Vec<u8> = (0..1000).map(|i| if i / 100 <= n { (i / 100) as u8 + 1 } else { 0 }).collect();
        assert_eq!(&**view, expected, "view {n}");
    }
    let last = views.pop().unwrap();
    drop(views);
    drop(buffer);
    let reused = device.allocate(1000).unwrap();
    stream.run(reused.fill(.., 0xAA)).unwrap();
    drop((reused, stream, device));
    assert_eq!(last[999], 10, "a view outlives the device");
}

#[test]
fn a_view_of_a_dropped_buffer_is_not_disturbed_by_the_next_one() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let first = device.allocate(500).unwrap();
    stream.run(first.fill(.., 9)).unwrap();
    let view = read(&stream, &first);
    drop(first);
    let second = device.allocate(500).unwrap();
    assert_eq!(&*read(&stream, &second), [0; 500], "the next one is zero");
    stream.run(second.fill(.., 1)).unwrap();
    assert_eq!(&*view, [9; 500]);
}

#[test]
fn reads_are_views_of_the_same_memory() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let buffer = device.allocate(4096).unwrap();
    stream.run(buffer.write(0, vec![1; 4096])).unwrap();
    let [a, b] = [(); 2].map(|()| read(&stream, &buffer));
    assert_eq!(a.as_ptr(), b.as_ptr());
    assert_eq!(stream.run(buffer.read(100..)).unwrap().as_ptr(), a[100..].as_ptr());
    let (address, bytes) = (a.as_ptr(), a.into_bytes());
    assert_eq!(bytes.as_ptr(), address);
}

#[test]
fn adopted_bytes_are_read_in_place() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let bytes = Bytes::from(vec![6; 10_000]);
    let buffer = device.adopt(bytes.clone()).unwrap();
    assert_eq!(read(&stream, &buffer).as_ptr(), bytes.as_ptr());
    let memory = device.memory();
    assert_eq!((memory.adopted, memory.in_use, memory.reserved), (10_000, 0, 0));
    let copy = device.allocate(10_000).unwrap();
    stream.run(buffer.copy_to(.., &copy, 0)).unwrap();
    assert_eq!(&*read(&stream, &copy), &*bytes);
    drop(buffer);
    assert_eq!(device.memory().adopted, 0);
    // From one device to another without a copy.
    let there = cpu();
    let view = read(&stream, &copy);
    let address = view.as_ptr();
    let adopted = there.adopt(view.into_bytes()).unwrap();
    assert_eq!(there.stream().unwrap().run(adopted.read(..)).unwrap().as_ptr(), address);
}

#[test]
fn the_accounts_are_exact() {
    let device = cpu();
    let a = device.allocate(1000).unwrap(); // a block of 1024
    let b = device.allocate(1025).unwrap(); // a block of 1280
    let memory = device.memory();
    assert_eq!((memory.in_use, memory.buffers, memory.hits, memory.misses), (2304, 2, 0, 2));
    assert_eq!((memory.reserved, memory.in_use_peak, memory.reserved_peak), (2304, 2304, 2304));
    let clone = a.clone();
    drop(a);
    assert_eq!(device.memory(), memory, "a clone is the same buffer");
    drop((b, clone));
    let memory = device.memory();
    assert_eq!((memory.in_use, memory.buffers, memory.reserved), (0, 0, 2304));
    let c = device.allocate(1280).unwrap();
    let memory = device.memory();
    assert_eq!((memory.in_use, memory.hits, memory.misses, memory.in_use_peak), (1280, 1, 2, 2304));
    drop(c);
    assert_eq!(device.trim(1024), 1280, "the largest first");
    assert_eq!(device.memory().reserved, 1024);
    assert_eq!(device.trim(0), 1024);
    assert_eq!((device.memory().reserved, device.memory().reserved_peak), (0, 2304));
    assert_eq!(device.trim(0), 0);
}

#[test]
fn a_view_is_under_the_budget_until_it_is_dropped() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let buffer = device.allocate(4096).unwrap();
    let view = read(&stream, &buffer);
    stream.run(buffer.fill(.., 1)).unwrap();
    assert_eq!((device.memory().in_use, device.memory().reserved), (4096, 8192));
    drop(buffer);
    device.trim(0);
    assert_eq!((device.memory().in_use, device.memory().reserved), (0, 4096));
    drop(view);
    assert_eq!(device.memory().reserved, 0);
}

#[test]
fn commands_in_flight_keep_their_buffers() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let (gate, held) = support::Gate::across(&device, &stream);
    let buffer = device.allocate(100).unwrap();
    let id = buffer.id();
    let ticket = stream.submit(buffer.read(..)).unwrap();
    drop(buffer);
    assert_eq!(device.memory().buffers, 1);
    drop(device.buffer(id).unwrap());
    gate.open();
    held.wait().unwrap();
    assert_eq!(&*ticket.wait().unwrap(), [0; 100]);
    assert_eq!(device.memory().buffers, 0, "free when the answer is there");
    assert!(device.buffer(id).is_err());
}

#[test]
fn free_blocks_make_room_within_the_budget() {
    let device = cpu_with(DeviceOptions::default().budget(10 * 1024));
    let small: Vec<_> = (0..10).map(|_| device.allocate(1024).unwrap()).collect();
    assert!(device.allocate(1).is_err(), "the budget is used up");
    drop(small);
    assert_eq!(device.memory().reserved, 10 * 1024);
    let large = device.allocate(10 * 1024).unwrap();
    assert_eq!((device.memory().reserved, device.memory().in_use), (10 * 1024, 10 * 1024));
    assert_eq!(device.memory().reserved_peak, 10 * 1024, "never beyond the budget");
    drop(large);
    assert_eq!(device.memory().budget, 10 * 1024);
}

#[test]
fn threads_never_get_more_than_the_budget() {
    let device = cpu_with(DeviceOptions::default().budget(64 * 1024));
    thread::scope(|scope| {
        for seed in 1..=4u64 {
            let device = &device;
            scope.spawn(move || {
                let (mut random, mut held) = (seed, Vec::new());
                for _ in 0..20_000 {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    if random >> 60 < 8 {
                        held.extend(device.allocate((random >> 33) as usize % 20_000 + 1).ok());
                    } else if !held.is_empty() {
                        held.swap_remove((random >> 33) as usize % held.len());
                    }
                }
            });
        }
    });
    let memory = device.memory();
    assert!(memory.reserved_peak <= memory.budget, "{memory:?}");
    assert_eq!((memory.in_use, memory.buffers), (0, 0));
    device.trim(0);
    assert_eq!(device.memory().reserved, 0);
}

/// The bytes of the block that a buffer of `len` takes: four classes to the octave, from 256 on.
fn block(len: usize) -> i64 {
    let mut class = 256;
    for quarter in (0..4).cycle() {
        if class >= len {
            break;
        }
        class = class / (4 + quarter) * (5 + quarter);
    }
    class as i64
}

#[test]
fn a_million_operations_of_several_threads_keep_the_accounts_exact() {
    let device = cpu();
    let (bytes, buffers, allocations) = (AtomicI64::new(0), AtomicI64::new(0), AtomicU64::new(0));
    let kept: Vec<Vec<Buffer>> = thread::scope(|scope| {
        let threads: Vec<_> = (1..=4u64)
            .map(|seed| {
                let (device, bytes, buffers, allocations) = (&device, &bytes, &buffers, &allocations);
                scope.spawn(move || {
                    // Every buffer with its clones.
                    let (mut random, mut held) = (seed, Vec::<Vec<Buffer>>::new());
                    for _ in 0..250_000 {
                        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let (choice, value) = (random >> 60, (random >> 30) as usize & 0x3FFF_FFFF);
                        if held.is_empty() || (choice < 6 && held.len() < 64) {
                            let buffer = device.allocate(value % 5000 + 1).unwrap();
                            bytes.fetch_add(block(buffer.len()), Ordering::Relaxed);
                            buffers.fetch_add(1, Ordering::Relaxed);
                            allocations.fetch_add(1, Ordering::Relaxed);
                            held.push(vec![buffer]);
                            continue;
                        }
                        let place = value % held.len();
                        if choice < 9 {
                            let clone = held[place][0].clone();
                            held[place].push(clone);
                        } else {
                            let gone = held[place].pop().unwrap();
                            if held[place].is_empty() {
                                held.swap_remove(place);
                                bytes.fetch_sub(block(gone.len()), Ordering::Relaxed);
                                buffers.fetch_sub(1, Ordering::Relaxed);
                            }
                        }
                    }
                    held.into_iter().flatten().collect()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let memory = device.memory();
    assert_eq!(memory.in_use as i64, bytes.load(Ordering::Relaxed));
    assert_eq!(memory.buffers as i64, buffers.load(Ordering::Relaxed));
    assert_eq!(memory.hits + memory.misses, allocations.load(Ordering::Relaxed));
    assert!(memory.in_use_peak >= memory.in_use && memory.reserved >= memory.in_use);
    drop(kept);
    let memory = device.memory();
    assert_eq!((memory.in_use, memory.buffers), (0, 0));
    assert_eq!(device.trim(0), memory.reserved);
    assert_eq!(device.memory().reserved, 0);
}

#[test]
fn the_last_two_handles_may_be_dropped_at_the_same_moment() {
    let device = cpu();
    for _ in 0..5000 {
        let buffer = device.allocate(100).unwrap();
        let (clone, start) = (buffer.clone(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !start.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                drop(clone);
            });
            start.store(true, Ordering::Relaxed);
            drop(buffer);
        });
        assert_eq!((device.memory().in_use, device.memory().buffers), (0, 0));
    }
}

#[test]
fn looking_a_buffer_up_while_it_is_dropped_never_brings_a_dead_one_back() {
    let device = cpu();
    let (id_word, stop) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
    let device_id = device.allocate(1).unwrap().id().device;
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let word = id_word.load(Ordering::SeqCst);
                    let id =
                        millrace::BufferId { device: device_id, index: (word >> 32) as u32, generation: word as u32 };
                    match device.buffer(id) {
                        Ok(found) => assert_eq!(found.id(), id, "another life of the same place"),
                        Err(error) => assert!(matches!(error, Error::StaleHandle { .. })),
                    }
                }
            });
        }
        for round in 0..30_000 {
            let buffer = device.allocate(100).unwrap();
            let id = buffer.id();
            id_word.store(u64::from(id.index) << 32 | u64::from(id.generation), Ordering::SeqCst);
            drop(buffer);
            if round % 64 == 0 {
                device.trim(0);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let memory = device.memory();
    assert_eq!((memory.in_use, memory.buffers), (0, 0));
    assert_eq!(device.trim(0), memory.reserved);
}

#[test]
fn blocks_are_aligned_for_what_works_on_them() {
    let device = cpu();
    let stream = device.stream().unwrap();
    for len in [1, 100, 1000, 10_000, 100_000, 1 << 20, 5 << 20] {
        let buffer = device.allocate(len).unwrap();
        let address = read(&stream, &buffer).as_ptr().addr();
        assert_eq!(address % 64, 0, "{len}");
        assert!(len < 1 << 20 || address.is_multiple_of(4096), "{len}");
    }
}

#[test]
fn two_contexts_never_share_blocks() {
    let (one, other) = (cpu(), cpu());
    let [stream, other_stream] = [&one, &other].map(|device| device.stream().unwrap());
    let buffer = one.allocate(1000).unwrap();
    stream.run(buffer.fill(.., 0xEE)).unwrap();
    drop(buffer);
    let there = other.allocate(1000).unwrap();
    assert_eq!((other.memory().hits, other.memory().misses), (0, 1));
    assert!(read(&other_stream, &there).iter().all(|b| *b == 0));
    assert_eq!(one.memory().in_use, 0);
    assert_eq!(other.memory().reserved, 1024);
}

#[test]
fn buffers_and_views_outlive_their_device() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let buffer = device.allocate(1000).unwrap();
    stream.run(buffer.fill(.., 2)).unwrap();
    let view = read(&stream, &buffer);
    drop((device, stream));
    assert_eq!(buffer.len(), 1000);
    drop(buffer);
    assert_eq!(&*view, [2; 1000]);
}

#[test]
fn copies_in_opposite_directions_do_not_wait_for_each_other() {
    let device = support::workers(4);
    let (a, b) = (device.allocate(5000).unwrap(), device.allocate(5000).unwrap());
    thread::scope(|scope| {
        for (from, to) in [(&a, &b), (&b, &a), (&a, &b), (&b, &a)] {
            let stream = device.stream().unwrap();
            scope.spawn(move || {
                for n in 0..500 {
                    stream.submit(from.copy_to(n..n + 1000, to, 4000 - n)).unwrap();
                    stream.submit(from.copy_to(0..500, from, 250)).unwrap();
                }
                stream.synchronize().unwrap();
            });
        }
    });
}

#[derive(Debug, Clone)]
enum Step {
    Write { buffer: usize, at: usize, len: usize, value: u8 },
    Fill { buffer: usize, at: usize, len: usize, value: u8 },
    Copy { from: usize, at: usize, len: usize, to: usize, to_at: usize },
    Read { buffer: usize, at: usize, len: usize },
    Kernel { from: usize, to: usize, at: usize, len: usize, access: bool },
    Hold { buffer: usize },
    Release,
    Clone { buffer: usize },
    Renew { buffer: usize, len: usize },
    Trim,
}

const BUFFERS: usize = 4;
const LARGEST: usize = 2000;

fn step() -> impl Strategy<Value = Step> {
    let (buffer, at) = (0..BUFFERS, 0..LARGEST);
    // Short ones leave gaps, long ones overlap.
    let len = || prop_oneof![Just(0usize), 1..16usize, 1..LARGEST];
    prop_oneof![
        4 => (buffer.clone(), at.clone(), len(), 1..=255u8)
            .prop_map(|(buffer, at, len, value)| Step::Write { buffer, at, len, value }),
        2 => (buffer.clone(), at.clone(), len(), any::<u8>())
            .prop_map(|(buffer, at, len, value)| Step::Fill { buffer, at, len, value }),
        4 => (buffer.clone(), at.clone(), len(), buffer.clone(), at.clone())
            .prop_map(|(from, at, len, to, to_at)| Step::Copy { from, at, len, to, to_at }),
        3 => (buffer.clone(), at.clone(), len()).prop_map(|(buffer, at, len)| Step::Read { buffer, at, len }),
        2 => (buffer.clone(), buffer.clone(), at.clone(), len(), any::<bool>())
            .prop_map(|(from, to, at, len, access)| Step::Kernel { from, to, at, len, access }),
        2 => buffer.clone().prop_map(|buffer| Step::Hold { buffer }),
        1 => Just(Step::Release),
        1 => buffer.clone().prop_map(|buffer| Step::Clone { buffer }),
        3 => (buffer, 1..LARGEST).prop_map(|(buffer, len)| Step::Renew { buffer, len }),
        1 => Just(Step::Trim),
    ]
}

/// A range as near to the wanted one as the buffer allows.
fn inside(size: usize, at: usize, len: usize) -> std::ops::Range<usize> {
    let start = at.min(size);
    start..(start + len).min(size)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn buffers_behave_like_vectors_of_zeros(steps in prop::collection::vec(step(), 1..80)) {
        let device = cpu_with(DeviceOptions::default().workers(1));
        let stream = device.stream().unwrap();
        let copy = [Access::ReadWrite, Access::Overwrite].map(|access| copier(&device, Access::Read, access));
        let mut buffers: Vec<_> = (0..BUFFERS).map(|n| device.allocate(500 * (n + 1)).unwrap()).collect();
        let mut models: Vec<_> = buffers.iter().map(|buffer| vec![0u8; buffer.len()]).collect();
        let (mut views, mut clones) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Write { buffer, at, len, value } => {
                    let range = inside(models[buffer].len(), at, len);
                    let data: Vec<_> = (0..range.len()).map(|i| value.wrapping_add(i as u8)).collect();
                    models[buffer][range.clone()].copy_from_slice(&data);
                    stream.run(buffers[buffer].write(range.start, data)).unwrap();
                }
                Step::Fill { buffer, at, len, value } => {
                    let range = inside(models[buffer].len(), at, len);
                    models[buffer][range.clone()].fill(value);
                    stream.run(buffers[buffer].fill(range, value)).unwrap();
                }
                Step::Copy { from, at, len, to, to_at } => {
                    let room = inside(models[to].len(), to_at, len);
                    let range = inside(models[from].len(), at, room.len());
                    let data = models[from][range.clone()].to_vec();
                    models[to][room.start..room.start + data.len()].copy_from_slice(&data);
                    stream.run(buffers[from].copy_to(range, &buffers[to], room.start)).unwrap();
                }
                Step::Read { buffer, at, len } => {
                    let range = inside(models[buffer].len(), at, len);
                    prop_assert_eq!(&*stream.run(buffers[buffer].read(range.clone())).unwrap(), &models[buffer][range]);
                }
                Step::Kernel { from, to, at, len, access } => {
                    if from == to {
                        continue;
                    }
                    let room = inside(models[to].len(), at, len);
                    let range = inside(models[from].len(), at, room.len());
                    let room = room.start..room.start + range.len();
                    let data = models[from][range.clone()].to_vec();
                    models[to][room.clone()].copy_from_slice(&data);
                    let launch = copy[usize::from(access)].launch();
                    stream.run(launch.bind(buffers[from].slice(range)).bind(buffers[to].slice(room))).unwrap();
                }
                Step::Hold { buffer } => views.push((read(&stream, &buffers[buffer]), models[buffer].clone())),
                Step::Release => _ = views.pop(),
                Step::Clone { buffer } => clones.push((buffers[buffer].clone(), models[buffer].len())),
                Step::Renew { buffer, len } => {
                    clones.retain(|(clone, _)| !clone.same_as(&buffers[buffer]));
                    buffers[buffer] = device.allocate(1).unwrap(); // so that the old one is free
                    buffers[buffer] = device.allocate(len).unwrap();
                    models[buffer] = vec![0; len];
                }
                Step::Trim => _ = device.trim(0),
            }
            for (view, model) in &views {
                prop_assert_eq!(&**view, model);
            }
        }
        for (buffer, model) in buffers.iter().zip(&models) {
            prop_assert_eq!(&*read(&stream, buffer), model);
        }
        prop_assert!(clones.iter().all(|(clone, len)| clone.len() == *len));
        drop((buffers, views, clones));
        let memory = device.memory();
        prop_assert_eq!((memory.in_use, memory.buffers), (0, 0));
        device.trim(0);
        prop_assert_eq!(device.memory().reserved, 0);
    }
}
