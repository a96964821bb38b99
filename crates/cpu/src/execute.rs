//! Transfers, and the promise that never-written bytes read as zero.

use std::{
    ops::Range,
    sync::{Arc, PoisonError, RwLockReadGuard, RwLockWriteGuard},
};

use millrace_core::{Buffer, Copy, Error, Fill, Output, Read, Result, Storage, View, Write};

pub(crate) fn lock_read(buffer: &Buffer) -> RwLockReadGuard<'_, Storage> {
    buffer.storage().read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn lock_write(buffer: &Buffer) -> RwLockWriteGuard<'_, Storage> {
    buffer.storage().write().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a range can be read as it is.
pub(crate) fn is_readable(buffer: &Buffer, storage: &Storage, range: &Range<usize>) -> bool {
    buffer.is_fresh(storage) && storage.undefined(range).iter().all(Range::is_empty)
}

/// Makes `range` ready to be written, or, without `overwrite`, to be read and written: the memory is ours alone, and
/// whatever of the range is not going to be overwritten holds what it should. Returns the whole buffer's bytes.
pub(crate) fn make_writable<'s>(
    buffer: &Buffer,
    storage: &'s mut Storage,
    range: &Range<usize>,
    overwrite: bool,
) -> Result<&'s mut [u8]> {
    buffer.refresh(storage);
    if Arc::strong_count(storage.memory()) > 1 {
        leave_to_views(buffer, storage, range, overwrite)?;
    }
    let undefined = buffer.prepare(storage, range, overwrite);
    let memory = storage.memory_mut().and_then(|memory| memory.block_mut().host_mut());
    let Some(bytes) = memory else { return Err(Error::ReadOnly) };
    for zero in undefined.into_iter().filter(|zero| !zero.is_empty()) {
        bytes[zero].fill(0);
    }
    Ok(bytes)
}

/// Views hold the memory: they keep it, and the buffer goes on with a copy.
#[cold]
fn leave_to_views(buffer: &Buffer, storage: &mut Storage, range: &Range<usize>, overwrite: bool) -> Result<()> {
    let mut memory = buffer.new_memory()?;
    let defined = storage.defined();
    let obsolete = overwrite && range.start <= defined.start && defined.end <= range.end;
    let new = Arc::get_mut(&mut memory).and_then(|memory| memory.block_mut().host_mut());
    let (Some(old), Some(new)) = (storage.memory().block().host(), new) else { return Err(Error::ReadOnly) };
    if !obsolete {
        new[defined.clone()].copy_from_slice(&old[defined]);
    }
    let all = 0..new.len(); // the rest of new memory is zero
    storage.replace(memory, all);
    Ok(())
}

pub(crate) fn write(write: &Write) -> Result<Output> {
    let (buffer, range) = (write.to.buffer(), write.to.range());
    let mut storage = lock_write(buffer);
    make_writable(buffer, &mut storage, &range, true)?[range].copy_from_slice(&write.data);
    Ok(Output::Done)
}

pub(crate) fn fill(fill: &Fill) -> Result<Output> {
    let (buffer, range) = (fill.to.buffer(), fill.to.range());
    let mut storage = lock_write(buffer);
    make_writable(buffer, &mut storage, &range, true)?[range].fill(fill.value);
    Ok(Output::Done)
}

pub(crate) fn read(read: &Read) -> Result<Output> {
    let (buffer, range) = (read.from.buffer(), read.from.range());
    let storage = lock_read(buffer);
    let memory = if is_readable(buffer, &storage, &range) {
        storage.memory().clone()
    } else {
        drop(storage);
        let mut storage = lock_write(buffer);
        make_writable(buffer, &mut storage, &range, false)?;
        storage.memory().clone()
    };
    let size = range.len() as u64;
    let offset = range.start as u64;
    View::new(memory, range).map(Output::View).ok_or(Error::OutOfRange { offset, len: size, size })
}

pub(crate) fn copy(copy: &Copy) -> Result<Output> {
    let (from, to) = (copy.from.buffer(), copy.to.buffer());
    let (source, target) = (copy.from.range(), copy.to.range());
    if from.same_as(to) {
        let mut storage = lock_write(to);
        // The source must be readable before the target is declared to be.
        make_writable(to, &mut storage, &source, false)?;
        make_writable(to, &mut storage, &target, true)?.copy_within(source, target.start);
        return Ok(Output::Done);
    }
    let copy_locked = |from_storage: &Storage, to_storage: &mut Storage| -> Result<Output> {
        let bytes = from_storage.memory().block().host().ok_or(Error::ReadOnly)?;
        make_writable(to, to_storage, &target, true)?[target.clone()].copy_from_slice(&bytes[source.clone()]);
        Ok(Output::Done)
    };
    loop {
        // Always in the same order, so that two copies in opposite directions do not wait for each other.
        let (from_storage, mut to_storage);
        if from.lock_order() < to.lock_order() {
            from_storage = lock_read(from);
            to_storage = lock_write(to);
        } else {
            to_storage = lock_write(to);
            from_storage = lock_read(from);
        }
        if is_readable(from, &from_storage, &source) {
            return copy_locked(&from_storage, &mut to_storage);
        }
        drop((from_storage, to_storage));
        make_writable(from, &mut lock_write(from), &source, false)?;
    }
}
