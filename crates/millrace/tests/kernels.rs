//! Kernels: what they see of their launch, and that every piece of the output is written once.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use millrace::{Binding, prelude::*};
use support::{cpu, workers};

#[test]
fn a_kernel_sees_the_geometry_of_its_launch() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let book = seen.clone();
    let spec = KernelSpec::new("where").cpu(CpuKernel::per_group(move |group| {
        book.lock().unwrap().push((group.index, group.id, group.grid(), group.block()));
    }));
    let kernel = device.kernel(&spec).unwrap();
    let shapes: [([u32; 3], [u32; 3]); 4] =
        [([1, 1, 1], [1, 1, 1]), ([7, 1, 1], [64, 1, 1]), ([3, 5, 2], [4, 2, 8]), ([1, 1, 9], [1024, 1, 1])];
    for (grid, block) in shapes {
        stream.run(kernel.launch().grid(grid).block(block)).unwrap();
        let mut calls = std::mem::take(&mut *seen.lock().unwrap());
        calls.sort_unstable_by_key(|call| call.0);
        let mut expected = Vec::new();
        for z in 0..grid[2] {
            for y in 0..grid[1] {
                for x in 0..grid[0] {
                    let id = Dim3::from([x, y, z]);
                    expected.push((expected.len() as u64, id, Dim3::from(grid), Dim3::from(block)));
                }
            }
        }
        assert_eq!(calls, expected);
    }
}

#[test]
fn a_whole_kernel_is_called_once_and_sees_the_geometry() {
    let device = cpu();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let book = calls.clone();
    let spec = KernelSpec::new("whole").cpu(CpuKernel::whole(move |launch| {
        book.lock().unwrap().push((launch.grid(), launch.block()));
    }));
    let launch = device.kernel(&spec).unwrap().launch().grid([3, 4, 5]).block([2, 2]);
    device.stream().unwrap().run(launch).unwrap();
    assert_eq!(*calls.lock().unwrap(), [(Dim3::from([3, 4, 5]), Dim3::from([2, 2]))]);
}

#[test]
fn every_group_is_called_once_and_the_pieces_cover_the_output() {
    let device = cpu();
    let stream = device.stream().unwrap();
    for per_thread in [1, 3] {
        let binding = Binding { name: "out".into(), access: Access::ReadWrite, element: 4, per_thread };
        // Adds, so that a piece that is given out twice shows.
        let spec = KernelSpec::new("cover").binding_of(binding).cpu(CpuKernel::per_group(|group| {
            let start = group.start(0);
            for (i, out) in group.output::<u32>(0).iter_mut().enumerate() {
                *out += (start + i) as u32 + 1;
            }
        }));
        let kernel = device.kernel(&spec).unwrap();
        for n in [1, 2, 3, 63, 64, 65, 1000, 1023, 10_007, 100_003] {
            let buffer = device.allocate(4 * n).unwrap();
            for block in [1, 7, 64, 1024] {
                let threads = n.div_ceil(per_thread);
                if threads.div_ceil(block as usize) > 65_535 {
                    continue;
                }
                stream.run(buffer.fill(.., 0)).unwrap();
                stream.run(kernel.launch().bind(&buffer).over(threads, block)).unwrap();
                let view = stream.run(buffer.read(..)).unwrap();
                let wrong = view.to::<u32>().iter().enumerate().find(|(i, v)| **v != *i as u32 + 1);
                assert_eq!(wrong, None, "{n} elements in groups of {block}");
            }
        }
    }
}

#[test]
fn outputs_of_different_sizes_are_cut_each_by_its_own_measure() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let binding = |element, per_thread| Binding { name: "x".into(), access: Access::Overwrite, element, per_thread };
    let spec =
        KernelSpec::new("two").binding_of(binding(4, 1)).binding_of(binding(1, 2)).cpu(CpuKernel::per_group(|group| {
            let index = group.index as u32;
            group.output::<u32>(0).fill(index);
            group.output::<u8>(1).fill(index as u8);
        }));
    let kernel = device.kernel(&spec).unwrap();
    let (words, bytes) = (device.allocate(4 * 100).unwrap(), device.allocate(200).unwrap());
    stream.run(kernel.launch().bind(&words).bind(&bytes).over(100, 10)).unwrap();
    let (words, bytes) = (stream.run(words.read(..)).unwrap(), stream.run(bytes.read(..)).unwrap());
    assert!(words.to::<u32>().iter().enumerate().all(|(i, v)| *v as usize == i / 10));
    assert!(bytes.iter().enumerate().all(|(i, v)| *v as usize == i / 20));
}

#[test]
fn a_bound_part_is_all_that_a_kernel_sees() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let spec = KernelSpec::new("part").binding::<u8>("x", Access::Read).binding::<u8>("y", Access::ReadWrite).cpu(
        CpuKernel::whole(|launch| {
            let (x, y) = (launch.input::<u8>(0), launch.output::<u8>(1));
            assert_eq!((x.len(), y.len()), (10, 20));
            y[..10].copy_from_slice(x);
        }),
    );
    let (x, y) = (device.allocate(100).unwrap(), device.allocate(100).unwrap());
    stream.run(x.write(0, (0..100).collect::<Vec<u8>>())).unwrap();
    stream.run(y.fill(.., 200)).unwrap();
    let launch = device.kernel(&spec).unwrap().launch().bind(x.slice(30..40)).bind(y.slice(50..70));
    stream.run(launch).unwrap();
    let mut expected = [200; 100];
    (50..60).for_each(|i| expected[i] = i as u8 - 20);
    assert_eq!(&*stream.run(y.read(..)).unwrap(), expected);
}

#[test]
fn the_devices_threads_are_called_with_every_number_once() {
    let device = cpu();
    let stream = device.stream().unwrap();
    for n in [0u64, 1, 2, 7, 64, 1001, 100_000] {
        let calls: Arc<Vec<AtomicU32>> = Arc::new((0..n).map(|_| AtomicU32::new(0)).collect());
        let counted = calls.clone();
        let spec = KernelSpec::new("each").cpu(CpuKernel::whole(move |launch| {
            assert!(launch.threads().count() >= 1);
            launch.threads().for_each(n, &|i| _ = counted[i as usize].fetch_add(1, Ordering::Relaxed));
        }));
        stream.run(device.kernel(&spec).unwrap().launch()).unwrap();
        assert!(calls.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{n}");
    }
}

#[test]
fn a_large_grid_runs_on_several_threads() {
    if millrace::cpu::CpuInfo::get().cores < 2 {
        return; // there is one thread
    }
    let device = cpu();
    let threads = Arc::new(Mutex::new(HashSet::new()));
    let book = threads.clone();
    let spec = KernelSpec::new("long").cpu(CpuKernel::per_group(move |_| {
        book.lock().unwrap().insert(thread::current().id());
        thread::sleep(Duration::from_micros(200));
    }));
    device.stream().unwrap().run(device.kernel(&spec).unwrap().launch().grid(500)).unwrap();
    assert!(threads.lock().unwrap().len() > 1);
}

#[test]
fn parameters_arrive_as_they_were_passed() {
    #[repr(C)]
    #[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
    struct Params {
        scale: f64,
        offset: i32,
        flags: [u8; 4],
    }
    let device = cpu();
    let stream = device.stream().unwrap();
    let seen = Arc::new(Mutex::new(None));
    let book = seen.clone();
    let code = CpuKernel::per_group(move |group| *book.lock().unwrap() = Some(group.params::<Params>()));
    let kernel = device.kernel(&KernelSpec::new("params").params::<Params>().cpu(code)).unwrap();
    for n in 0..100 {
        let params = Params { scale: f64::from(n) / 3.0, offset: -n, flags: [n as u8; 4] };
        stream.run(kernel.launch().params(&Params { offset: 0, ..params }).params(&params)).unwrap();
        assert_eq!(*seen.lock().unwrap(), Some(params));
    }
}

#[test]
fn a_launch_takes_the_parameters_of_the_moment_it_was_made() {
    let device = workers(1);
    let (stream, log) = (device.stream().unwrap(), support::Log::new(&device));
    let launches: Vec<_> = (0..50).map(|n| log.launch(n)).collect();
    for launch in launches.into_iter().rev() {
        stream.submit(launch).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(log.seen(), (0..50).rev().collect::<Vec<_>>());
}

#[test]
fn many_launches_give_the_same_result_every_time() {
    let device = workers(2);
    let spec = KernelSpec::new("mix")
        .binding::<u32>("x", Access::Read)
        .binding::<u32>("y", Access::Overwrite)
        .params::<u32>()
        .cpu(CpuKernel::per_group(|group| {
            let (x, y) = (group.input::<u32>(0), group.output::<u32>(1));
            let (start, salt) = (group.start(1), group.params::<u32>());
            for (i, y) in y.iter_mut().enumerate() {
                *y = (x[start + i] ^ salt).wrapping_mul(2_654_435_761).rotate_left(13);
            }
        }));
    let kernel = device.kernel(&spec).unwrap();
    const N: usize = 5003;
    let input: Vec<u32> = (0..N as u32).collect();
    let mut expected = input.clone();
    for salt in 0..20 {
        expected.iter_mut().for_each(|x| *x = (*x ^ salt).wrapping_mul(2_654_435_761).rotate_left(13));
    }
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let stream = device.stream().unwrap();
                for _ in 0..10 {
                    let mut pair = [device.allocate(4 * N).unwrap(), device.allocate(4 * N).unwrap()];
                    stream.submit(pair[0].write(0, bytemuck::cast_slice::<_, u8>(&input).to_vec())).unwrap();
                    for salt in 0..20u32 {
                        let launch = kernel.launch().bind(&pair[0]).bind(&pair[1]).params(&salt).over(N, 64);
                        stream.submit(launch).unwrap();
                        pair.swap(0, 1);
                    }
                    let result = stream.run(pair[0].read(..)).unwrap();
                    assert_eq!(result.to::<u32>(), expected);
                }
            });
        }
    });
}

#[test]
fn an_output_that_is_overwritten_holds_exactly_what_the_kernel_wrote() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let spec = KernelSpec::new("count").binding::<u16>("x", Access::Overwrite).cpu(CpuKernel::per_group(|group| {
        let start = group.start(0);
        for (i, x) in group.output::<u16>(0).iter_mut().enumerate() {
            *x = (start + i) as u16;
        }
    }));
    let kernel = device.kernel(&spec).unwrap();
    for n in [1usize, 77, 4096, 60_000] {
        let used = device.allocate(2 * n).unwrap();
        stream.run(used.fill(.., 0xEE)).unwrap();
        drop(used);
        let buffer = device.allocate(2 * n).unwrap();
        let before = stream.run(buffer.read(..)).unwrap();
        stream.run(kernel.launch().bind(&buffer).over(n, 128)).unwrap();
        let after = stream.run(buffer.read(..)).unwrap();
        assert!(after.to::<u16>().iter().enumerate().all(|(i, x)| *x == i as u16), "{n}");
        assert!(before.iter().all(|b| *b == 0), "the view of before is as it was");
    }
}

#[test]
fn a_kernel_on_several_streams_at_once_keeps_its_launches_apart() {
    let device = workers(4);
    let spec = KernelSpec::new("stamp").binding::<u32>("x", Access::Overwrite).params::<u32>().cpu(
        CpuKernel::per_group(|group| {
            let value = group.params::<u32>();
            group.output::<u32>(0).fill(value);
        }),
    );
    let kernel = device.kernel(&spec).unwrap();
    thread::scope(|scope| {
        for thread in 0..4u32 {
            let (device, kernel) = (&device, &kernel);
            scope.spawn(move || {
                let (stream, buffer) = (device.stream().unwrap(), device.allocate(4 * 300).unwrap());
                for n in 0..200 {
                    let value = thread << 16 | n;
                    stream.submit(kernel.launch().bind(&buffer).params(&value).over(300, 32)).unwrap();
                    assert!(stream.run(buffer.read(..)).unwrap().to::<u32>().iter().all(|v| *v == value));
                }
            });
        }
    });
}
