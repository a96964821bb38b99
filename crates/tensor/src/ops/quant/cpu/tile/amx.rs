//! Tiles of AMX: registers of 16 rows of 64 bytes, and one instruction that multiplies two of them.
//!
//! The instructions are written as assembly, since Rust does not offer them yet. A process has to ask Linux for the
//! registers, and a thread has to say how it uses them before it does.

use std::{arch::asm, marker::PhantomData, sync::OnceLock};

use super::{PANEL, Sums};

/// Rows of a register,
pub(super) const ROWS: usize = 16;
/// and words of each.
pub(super) const WORDS: usize = 16;

/// Whether the processor has them and the system lets us use them. Asks once.
pub(super) fn is_there() -> bool {
    static THERE: OnceLock<bool> = OnceLock::new();
    *THERE.get_or_init(|| has() && allowed())
}

/// Bits 24 and 25 of leaf 7 are AMX's tiles and its products of eight bits; bits 17 and 18 of XCR0 say that the system saves
/// the registers.
fn has() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    const OS_SAVES: u32 = 1 << 27;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OS_SAVES == 0 || !is_x86_feature_detected!("xsave") {
        return false;
    }
    // SAFETY: the processor has the instruction, and the system says that it may be used.
    let saved = unsafe { _xgetbv(0) };
    __cpuid_count(7, 0).edx >> 24 & 0b11 == 0b11 && saved >> 17 & 0b11 == 0b11
}

/// Asks for the registers: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
#[cfg(target_os = "linux")]
fn allowed() -> bool {
    let answer: i64;
    // SAFETY: the call changes nothing but which registers this process may use.
    unsafe {
        asm!("syscall", inlateout("rax") 158i64 => answer, in("rdi") 0x1023i64, in("rsi") 18i64, out("rcx") _, out("r11") _,
             options(nostack));
    }
    answer == 0
}

#[cfg(not(target_os = "linux"))]
fn allowed() -> bool {
    false
}

/// How registers are used: all eight are whole.
#[repr(C, align(64))]
struct Layout {
    palette: u8,
    first_row: u8,
    unused: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

const WHOLE: Layout = {
    let (mut bytes, mut rows) = ([0; 16], [0; 16]);
    let mut register = 0;
    while register < 8 {
        (bytes[register], rows[register]) = (4 * WORDS as u16, ROWS as u8);
        register += 1;
    }
    Layout { palette: 1, first_row: 0, unused: [0; 14], bytes, rows }
};

/// The registers of this thread, until dropped.
pub(super) struct Registers(PhantomData<*mut ()>);

impl Registers {
    /// None if there are none.
    pub(super) fn take() -> Option<Self> {
        if !is_there() {
            return None;
        }
        // SAFETY: they are there and may be used, and the layout is one that the manual allows.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &WHOLE, options(nostack, readonly)) };
        Some(Self(PhantomData))
    }

    /// Adds the products of 16 or 32 rows, which are `stride` words apart, and a panel, all of them whole registers.
    #[inline]
    pub(super) fn multiply(&self, a: &[u32], stride: usize, rows: usize, b: &[u32], sums: &mut Sums) {
        let steps = b.len() / PANEL;
        assert!(steps.is_multiple_of(WORDS) && steps > 0 && PANEL == 2 * WORDS, "whole registers");
        assert!((rows == ROWS || rows == 2 * ROWS) && rows <= sums.0.len(), "rows of two registers at most");
        assert!((rows - 1) * stride + steps <= a.len(), "rows are inside their factor");
        let to = sums.0.as_mut_ptr();
        let (apart, line) = (4 * stride, 4 * PANEL);
        // SAFETY: this thread has registers, all of them whole. Rows of `a` are inside, as was just asserted, for as many
        // words as there are steps; a register of `b` is 16 steps of half a panel each, and steps are whole registers; `rows`
        // rows of sums are inside. Only sums are written.
        unsafe {
            let (low, half) = (a.as_ptr(), to.cast::<u8>());
            if rows == ROWS {
                asm!(
                    "tileloadd tmm0, [{to} + {line}]",
                    "tileloadd tmm1, [{to} + {line} + 64]",
                    "2:",
                    "tileloadd tmm4, [{a} + {apart}]",
                    "tileloadd tmm6, [{b} + {line}]",
                    "tileloadd tmm7, [{b} + {line} + 64]",
                    "tdpbsud tmm0, tmm4, tmm6",
                    "tdpbsud tmm1, tmm4, tmm7",
                    "add {a}, 64",
                    "add {b}, 2048",
                    "dec {n}",
                    "jnz 2b",
                    "tilestored [{to} + {line}], tmm0",
                    "tilestored [{to} + {line} + 64], tmm1",
                    to = in(reg) half, line = in(reg) line, apart = in(reg) apart,
                    a = inout(reg) low => _, b = inout(reg) b.as_ptr() => _, n = inout(reg) steps / WORDS => _,
                    out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
                return;
            }
            let lower = half.add(ROWS * line);
            asm!(
                "tileloadd tmm0, [{to} + {line}]",
                "tileloadd tmm1, [{to} + {line} + 64]",
                "tileloadd tmm2, [{lower} + {line}]",
                "tileloadd tmm3, [{lower} + {line} + 64]",
                "2:",
                "tileloadd tmm6, [{b} + {line}]",
                "tileloadd tmm4, [{a} + {apart}]",
                "tileloadd tmm7, [{b} + {line} + 64]",
                "tileloadd tmm5, [{c} + {apart}]",
                "tdpbsud tmm0, tmm4, tmm6",
                "tdpbsud tmm1, tmm4, tmm7",
                "tdpbsud tmm2, tmm5, tmm6",
                "tdpbsud tmm3, tmm5, tmm7",
                "add {a}, 64",
                "add {c}, 64",
                "add {b}, 2048",
                "dec {n}",
                "jnz 2b",
                "tilestored [{to} + {line}], tmm0",
                "tilestored [{to} + {line} + 64], tmm1",
                "tilestored [{lower} + {line}], tmm2",
                "tilestored [{lower} + {line} + 64], tmm3",
                to = in(reg) half, lower = in(reg) lower, line = in(reg) line, apart = in(reg) apart,
                a = inout(reg) low => _, c = inout(reg) low.add(ROWS * stride) => _, b = inout(reg) b.as_ptr() => _,
                n = inout(reg) steps / WORDS => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: they were taken, by this thread, since they cannot be sent to another.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
