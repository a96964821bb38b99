//! Hot paths that can be run so many times, for whoever counts what they cost in something else than time.
//!
//! All of them run on the calling thread alone, or leave other threads asleep: what is counted is the same every time.

use std::hint::black_box;

use millrace::{
    CpuKernel, KernelSpec, Synchronize,
    resident::{Launch, LaunchOptions},
};

use crate::{
    Message, Result,
    message::payload,
    peers::{Millrace, MillraceSpsc},
    resident::kernels::{Adder, Command, INJECT, PAIR, Taker, check_sum},
    workloads::{Alone, CAPACITY},
};

/// A hot path.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    /// Its name.
    pub name: &'static str,
    /// What it does each time.
    pub about: &'static str,
    /// Does it so many times.
    pub run: fn(u64) -> Result<()>,
}

impl Path {
    /// Every path there is.
    pub const ALL: &'static [Self] = &[
        Self {
            name: "send-receive",
            about: "a small command through a ring and out again",
            run: |n| ring::<Millrace>(n),
        },
        Self {
            name: "send-receive-spsc",
            about: "the same through a ring with one sender",
            run: |n| ring::<MillraceSpsc>(n),
        },
        Self { name: "run", about: "an empty command on an idle stream, run by its caller", run: synchronize },
        Self { name: "launch", about: "an empty kernel on an idle stream, run by its caller", run: launch },
        Self { name: "allocate-free", about: "4 KiB from the pool and back", run: allocate },
        Self { name: "write-read", about: "1 KiB written to a buffer and viewed", run: write_read },
        Self { name: "inject", about: "a message into the ring of a paused resident kernel", run: inject },
        Self { name: "ask", about: "a question to a resident kernel, run by who asks", run: ask },
        Self { name: "bytes-clone", about: "a clone of a shared payload", run: clone },
    ];

    /// The path of a name.
    ///
    /// ```
    /// let path = millrace_lab::hot::Path::of("allocate-free").unwrap();
    /// (path.run)(100)?;
    /// # Ok::<(), millrace_lab::Error>(())
    /// ```
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|path| path.name == name).copied()
    }
}

fn ring<P: crate::peers::Link<Message>>(count: u64) -> Result<()> {
    let mut queue = Alone::new::<P>(CAPACITY);
    (0..count).try_for_each(|_| {
        queue.send(Message::small())?;
        black_box(queue.receive()?);
        Ok(())
    })
}

fn synchronize(count: u64) -> Result<()> {
    let stream = millrace::runtime().open("cpu")?.stream()?;
    Ok((0..count).try_for_each(|_| stream.run(Synchronize))?)
}

fn launch(count: u64) -> Result<()> {
    let device = millrace::runtime().open("cpu")?;
    let (stream, kernel) = (device.stream()?, device.kernel(&KernelSpec::new("empty").cpu(CpuKernel::whole(|_| ())))?);
    Ok((0..count).try_for_each(|_| stream.run(kernel.launch()))?)
}

fn allocate(count: u64) -> Result<()> {
    let device = millrace::runtime().open("cpu")?;
    (0..count).try_for_each(|_| {
        black_box(device.allocate(4096)?);
        Ok(())
    })
}

fn write_read(count: u64) -> Result<()> {
    let device = millrace::runtime().open("cpu")?;
    let (stream, buffer, bytes) = (device.stream()?, device.allocate(1024)?, payload(1024));
    (0..count).try_for_each(|_| {
        stream.run(buffer.write(0, bytes.clone()))?;
        black_box(stream.run(buffer.read(..))?);
        Ok(())
    })
}

fn inject(count: u64) -> Result<()> {
    let device = millrace::runtime().open("cpu")?;
    let room = (count as usize).next_power_of_two().max(8192); // the same for all counts, so that only sending differs
    let taker = device.launch(Taker, LaunchOptions::default().inbound(room))?;
    taker.pause()?;
    for n in 0..count as u32 {
        taker.try_send(Command::nth(INJECT, n)).map_err(millrace::resident::Error::from)?;
    }
    Ok(())
}

fn ask(count: u64) -> Result<()> {
    let adder = millrace::runtime().open("cpu")?.launch(Adder, LaunchOptions::default())?;
    (0..count).try_for_each(|_| check_sum(adder.ask(PAIR)?.value))
}

fn clone(count: u64) -> Result<()> {
    let bytes = payload(1 << 20);
    for _ in 0..count {
        black_box(black_box(&bytes).clone());
    }
    Ok(())
}
