//! Which of a processor's vector instructions the operations use.

use std::sync::OnceLock;

use pulp::Arch;

/// The environment variable that asks for less than the processor has.
const ASKED: &str = "MILLRACE_SIMD";

/// Vector instructions, the widest last.
///
/// Everything that is compiled here for several of them uses the widest that the processor has, or what the environment
/// variable `MILLRACE_SIMD` says if that is less: `scalar`, `neon`, `avx2` or `avx512`. Some Fourier transforms, and products
/// of large dense matrices except with `avx2`, come from libraries that choose by themselves.
///
/// ```
/// use millrace_tensor::Simd;
/// assert!(Simd::all().contains(&Simd::in_use()));
/// println!("{}", Simd::in_use().name());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Simd {
    /// What the compiler makes of plain loops.
    Scalar,
    /// Of ARM, 128 bits.
    Neon,
    /// Of x86, 256 bits, with FMA.
    Avx2,
    /// Of x86, 512 bits.
    Avx512,
}

impl Simd {
    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// All that this processor has, the widest last.
    pub fn all() -> Vec<Self> {
        let widest = of(Arch::new());
        [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512]
            .into_iter()
            .filter(|level| *level <= widest && arch_of(*level).is_some())
            .collect()
    }

    /// What is in use.
    pub fn in_use() -> Self {
        static CHOSEN: OnceLock<Simd> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let (all, widest) = (Self::all(), of(Arch::new()));
            let Some(asked) = std::env::var(ASKED).ok().filter(|asked| !asked.is_empty()) else { return widest };
            all.iter().copied().find(|level| level.name().eq_ignore_ascii_case(&asked)).unwrap_or_else(|| {
                let names: Vec<_> = all.iter().map(|level| level.name()).collect();
                tracing::warn!("{ASKED}={asked} is not to be had here, only {}", names.join(", "));
                widest
            })
        })
    }
}

fn of(arch: Arch) -> Simd {
    match arch {
        #[cfg(target_arch = "x86_64")]
        Arch::V4(_) => Simd::Avx512,
        #[cfg(target_arch = "x86_64")]
        Arch::V3(_) => Simd::Avx2,
        #[cfg(target_arch = "aarch64")]
        Arch::Neon(_) => Simd::Neon,
        _ => Simd::Scalar,
    }
}

/// The instructions of a level, if the processor has them.
pub(crate) fn arch_of(level: Simd) -> Option<Arch> {
    match level {
        Simd::Scalar => Some(Arch::Scalar),
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => pulp::x86::V3::try_new().map(Arch::V3),
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => pulp::x86::V4::try_new().map(Arch::V4),
        #[cfg(target_arch = "aarch64")]
        Simd::Neon => pulp::aarch64::Neon::try_new().map(Arch::Neon),
        _ => None,
    }
}

/// What loops are dispatched by.
#[inline]
pub(crate) fn arch() -> Arch {
    static CHOSEN: OnceLock<Arch> = OnceLock::new();
    *CHOSEN.get_or_init(|| arch_of(Simd::in_use()).unwrap_or(Arch::Scalar))
}
