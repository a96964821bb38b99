//! Kernels: locks what is bound, cuts the outputs into pieces, and calls the code over the grid.

use std::{
    sync::{RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use arrayvec::ArrayVec;
use millrace_core::{
    Access, Argument, Arguments, Buffer, CpuKernel, Error, Group, LaunchBody, Launched, MAX_BINDINGS, Output, Result,
    Spread, Storage, Threads, piece,
};

use crate::{
    execute::{is_readable, lock_read, lock_write, make_writable},
    threads::{All, Alone, Team},
};

/// What waking the other threads is worth: a launch that has less left than this stays on its thread.
const WORTH_WAKING: Duration = Duration::from_micros(100);

/// A locked buffer. Several bindings that read one buffer share one lock.
#[allow(dead_code, reason = "held, not looked at")]
enum Lock<'a> {
    Read(RwLockReadGuard<'a, Storage>),
    Write(RwLockWriteGuard<'a, Storage>),
}

/// A bound range while its buffer is locked.
#[derive(Clone, Copy)]
struct Bound {
    start: *mut u8,
    len: usize,
    writes: bool,
    /// The kernel promised to write all of it, so it was not made zero.
    overwrites: bool,
}

impl Bound {
    /// Before its buffer is locked.
    const NOTHING: Self = Self { start: std::ptr::null_mut(), len: 0, writes: false, overwrites: false };
}

/// What a launch binds, in the kernel's order, and the locks that keep it in place.
#[derive(Default)]
struct Bindings<'a> {
    bound: ArrayVec<Bound, MAX_BINDINGS>,
    /// The kernel has kept its promises.
    finished: bool,
    _locks: ArrayVec<Lock<'a>, MAX_BINDINGS>,
}

impl Drop for Bindings<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        for bound in self.bound.iter().filter(|bound| bound.overwrites) {
            // What a kernel that panicked has not written must not show what was there before the buffer's time.
            // SAFETY: still locked for writing, and no call of the kernel runs any more.
            unsafe { bound.start.write_bytes(0, bound.len) };
        }
    }
}

// SAFETY: the ranges stay locked while the launch runs. Those that are read are only read; of those that are written
// every call gets a piece of its own.
unsafe impl Sync for Bindings<'_> {}

impl Bindings<'_> {
    /// All arguments, the outputs cut to `of` (start and end in bytes).
    ///
    /// # Safety
    /// No two calls whose results live at the same time may get overlapping pieces of an output.
    unsafe fn arguments<'b>(&'b self, of: impl Fn(usize, usize) -> (usize, usize)) -> Arguments<'b> {
        let bound = self.bound.iter().enumerate();
        bound
            .map(|(i, bound)| {
                if !bound.writes {
                    // SAFETY: locked for reading, or for writing by us, who do not write it.
                    return Argument::Input(unsafe { std::slice::from_raw_parts(bound.start, bound.len) });
                }
                let (start, end) = of(i, bound.len);
                let (start, end) = (start.min(bound.len), end.min(bound.len));
                // SAFETY: locked for writing; inside the range; by contract nobody else has this piece.
                Argument::Output(unsafe { std::slice::from_raw_parts_mut(bound.start.add(start), end - start) })
            })
            .collect()
    }
}

pub(crate) fn launch(body: &LaunchBody, team: &Team) -> Result<Output> {
    let spec = body.kernel().spec();
    // Where it stays: it is as large as several cache lines, and to move it would cost more than what it does.
    let mut bindings = Bindings::default();
    bindings.lock(body)?;
    let threads: &dyn Threads = match body.spread() {
        Spread::Usual => team,
        Spread::One => &Alone,
        Spread::All => &All(team),
    };
    match spec.cpu_code() {
        Some(CpuKernel::Whole(code)) => {
            // SAFETY: called once.
            let arguments = unsafe { bindings.arguments(|_, len| (0, len)) };
            code(&mut Launched::new(body, arguments, threads));
        }
        Some(CpuKernel::PerGroup(code)) => {
            let steps: ArrayVec<usize, MAX_BINDINGS> =
                spec.bindings().iter().map(|b| piece(b, body.block()).saturating_mul(b.element)).collect();
            let call = |index: u64| {
                let piece_of = |i: usize, _| {
                    let start = steps[i].saturating_mul(index as usize);
                    (start, start.saturating_add(steps[i]))
                };
                // SAFETY: every group is called once, and the pieces of different groups do not overlap.
                let arguments = unsafe { bindings.arguments(piece_of) };
                code(&mut Group::new(index, body, spec.bindings(), arguments));
            };
            run_groups(body.grid().volume(), threads, &call);
        }
        None => return Err(Error::NoImplementation { kernel: spec.name().clone(), device: "cpu" }),
    }
    bindings.finished = true;
    Ok(Output::Done)
}

/// Calls every group: the first ones here, and the rest on all threads if there is enough of it.
fn run_groups(groups: u64, threads: &dyn Threads, call: &(dyn Fn(u64) + Sync)) {
    let mut done = 0;
    let start = Instant::now();
    // Looks at the clock after 1, 2, 4, … groups.
    while done < groups {
        let until = (done * 2).max(1).min(groups);
        (done..until).for_each(call);
        done = until;
        if done == groups {
            return;
        }
        let left = start.elapsed().as_nanos() / u128::from(done) * u128::from(groups - done);
        if threads.count() > 1 && (left > WORTH_WAKING.as_nanos() || threads.all_wanted()) {
            return threads.for_each(groups - done, &|n| call(done + n));
        }
    }
}

impl<'a> Bindings<'a> {
    /// Locks every bound buffer, always in the same order, with the bytes that are going to be read defined.
    fn lock(&mut self, body: &'a LaunchBody) -> Result<()> {
        let (slices, declared) = (body.bindings(), body.kernel().spec().bindings());
        let mut order = [0; MAX_BINDINGS];
        for i in 0..slices.len() {
            let place = |i: usize| slices[i].buffer().lock_order();
            let mut at = i;
            while at > 0 && place(order[at - 1]) > place(i) {
                order[at] = order[at - 1];
                at -= 1;
            }
            order[at] = i;
        }
        self.bound.extend(slices.iter().map(|_| Bound::NOTHING));
        // All bindings of one buffer together; if there are several, all of them read.
        for same in order[..slices.len()].chunk_by(|&i, &j| slices[i].buffer().same_as(slices[j].buffer())) {
            let access = declared[same[0]].access;
            let overwrites = access == Access::Overwrite && covers(body, same[0]);
            let (lock, base) = lock_one(slices[same[0]].buffer(), same, body, access, overwrites)?;
            self._locks.push(lock);
            for &i in same {
                let start = base.wrapping_add(slices[i].range().start);
                // Before anything fails: what is taken to be overwritten must not be left as it is.
                self.bound[i] = Bound { start, len: slices[i].len(), writes: access.writes(), overwrites };
                let align = (1 << declared[i].element.trailing_zeros()).min(16);
                if !start.addr().is_multiple_of(align) {
                    return Err(Error::Misaligned { value: start.addr() as u64, align: align as u64 });
                }
            }
        }
        Ok(())
    }
}

/// Whether the groups' pieces are all of a binding.
fn covers(body: &LaunchBody, i: usize) -> bool {
    let spec = body.kernel().spec();
    if matches!(spec.cpu_code(), Some(CpuKernel::Whole(_))) {
        return true;
    }
    let binding = &spec.bindings()[i];
    let pieces = (piece(binding, body.block()) as u64).saturating_mul(body.grid().volume());
    pieces.saturating_mul(binding.element as u64) >= body.bindings()[i].len() as u64
}

/// Locks one buffer; says where its bytes begin.
fn lock_one<'a>(
    buffer: &'a Buffer,
    bindings: &[usize],
    body: &LaunchBody,
    access: Access,
    overwrites: bool,
) -> Result<(Lock<'a>, *mut u8)> {
    let slices = body.bindings();
    if !access.writes() {
        let storage = lock_read(buffer);
        if bindings.iter().all(|&i| is_readable(buffer, &storage, &slices[i].range())) {
            let base = storage.memory().block().host().ok_or(Error::ReadOnly)?.as_ptr().cast_mut();
            return Ok((Lock::Read(storage), base));
        }
    }
    let mut storage = lock_write(buffer);
    let mut base = std::ptr::null_mut();
    for &i in bindings {
        base = make_writable(buffer, &mut storage, &slices[i].range(), overwrites)?.as_mut_ptr();
    }
    Ok((Lock::Write(storage), base))
}
