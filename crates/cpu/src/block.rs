//! Memory from the system: aligned to cache lines, whole pages for large blocks, huge pages where they help.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr::NonNull,
};

use bytes::Bytes;
use millrace_core::Block;

/// Alignment of every block: a cache line, and the widest vector register.
const ALIGN: usize = 64;
/// From here on a block is mapped by itself: the system zeroes its pages when they are first touched.
const MAPPED_FROM: usize = 256 * 1024;
/// From here on huge pages are asked for: they save page faults and address translations.
const HUGE_FROM: usize = 2 * HUGE_PAGE;
const HUGE_PAGE: usize = 2 * 1024 * 1024;

/// A block of our own.
pub(crate) struct Owned {
    start: NonNull<u8>,
    len: usize,
    origin: Origin,
}

enum Origin {
    Heap(Layout),
    /// What to give back to the system: the block is somewhere inside.
    #[cfg(unix)]
    Mapped {
        base: *mut libc::c_void,
        bytes: usize,
    },
}

// SAFETY: the block owns its memory, and access goes through `&` and `&mut`.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    /// A block of zeros. `None` if the system has no memory.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        #[cfg(unix)]
        if len >= MAPPED_FROM {
            return Self::mapped(len);
        }
        let layout = Layout::from_size_align(len, ALIGN).ok()?;
        // SAFETY: blocks are never empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, len, origin: Origin::Heap(layout) })
    }

    #[cfg(unix)]
    fn mapped(len: usize) -> Option<Self> {
        let huge = len >= HUGE_FROM;
        // A huge page must start at a multiple of its size.
        let bytes = if huge { len.checked_add(HUGE_PAGE)? } else { len };
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let skip = if huge { (base as usize).next_multiple_of(HUGE_PAGE) - base as usize } else { 0 };
        // SAFETY: `skip` is less than a huge page, by which the mapping is longer than the block.
        let start = NonNull::new(unsafe { base.cast::<u8>().add(skip) })?;
        #[cfg(target_os = "linux")]
        if huge {
            // SAFETY: the range is inside the mapping. It is advice: a refusal changes nothing.
            unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        }
        Some(Self { start, len, origin: Origin::Mapped { base, bytes } })
    }
}

impl Block for Owned {
    fn host(&self) -> Option<&[u8]> {
        // SAFETY: the block is `len` initialized bytes, and `&self` keeps writers away.
        Some(unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) })
    }

    fn host_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as above, and `&mut self` keeps everyone else away.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        match self.origin {
            // SAFETY: allocated in `zeroed` with this layout.
            Origin::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            // SAFETY: mapped in `mapped` with this length.
            #[cfg(unix)]
            Origin::Mapped { base, bytes } => unsafe {
                libc::munmap(base, bytes);
            },
        }
    }
}

/// Bytes of the host, read in place.
pub(crate) struct Adopted(pub(crate) Bytes);

impl Block for Adopted {
    fn host(&self) -> Option<&[u8]> {
        Some(&self.0)
    }

    fn host_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_every_size_are_aligned_zero_and_writable() {
        for len in [1, 256, MAPPED_FROM - 1, MAPPED_FROM, HUGE_FROM - 1, HUGE_FROM, HUGE_FROM + 4096] {
            let mut block = Owned::zeroed(len).unwrap();
            let bytes = block.host_mut().unwrap();
            assert_eq!(bytes.len(), len);
            let align = if len >= HUGE_FROM {
                HUGE_PAGE
            } else if len >= MAPPED_FROM {
                4096
            } else {
                ALIGN
            };
            assert_eq!(bytes.as_ptr() as usize % align, 0, "{len} bytes");
            assert!(bytes.iter().all(|b| *b == 0), "{len} bytes");
            (bytes[0], bytes[len - 1]) = (1, 1);
        }
    }

    /// Whether the system was told that huge pages are welcome where this address is.
    #[cfg(target_os = "linux")]
    fn is_advised(address: usize) -> bool {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in smaps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text: &str| usize::from_str_radix(text, 16);
            if let Some((Ok(first), Ok(end))) = range.map(|(first, end)| (number(first), number(end))) {
                inside = (first..end).contains(&address);
            } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
                return flags.split_whitespace().any(|flag| flag == "hg");
            }
        }
        panic!("{address:#x} is not mapped");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn huge_pages_are_asked_for_from_end_to_end_of_large_blocks_only() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return; // this system has none
        }
        for len in [MAPPED_FROM, HUGE_FROM - 1, HUGE_FROM, 4 * HUGE_PAGE + 4096] {
            let block = Owned::zeroed(len).unwrap();
            let start = block.host().unwrap().as_ptr() as usize;
            for address in [start, start + len / 2, start + len - 1] {
                assert_eq!(is_advised(address), len >= HUGE_FROM, "{len} bytes");
            }
        }
    }

    #[test]
    fn an_absurd_block_is_refused_and_nothing_breaks() {
        assert!(Owned::zeroed(1 << 50).is_none());
    }
}
