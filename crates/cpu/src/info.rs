//! What processor this is.

use std::{fs, io::Read, path::Path, sync::OnceLock};

use crate::node;

/// A level of cache, as one core sees it.
///
/// ```
/// for cache in &millrace_cpu::CpuInfo::get().caches {
///     assert!(cache.level >= 1 && cache.bytes > 0);
///     println!("L{} {}: {} bytes", cache.level, cache.kind, cache.bytes);
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// 1 is next to the core.
    pub level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Bytes.
    pub bytes: u64,
}

/// The processor: found out once, then remembered.
///
/// ```
/// let cpu = millrace_cpu::CpuInfo::get();
/// assert!(cpu.cores >= 1);
/// println!("{}: {} cores, {}", cpu.name, cpu.cores, cpu.simd.join(" "));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuInfo {
    /// What the vendor calls it.
    pub name: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Caches of the first core, nearest first.
    pub caches: Vec<Cache>,
    /// Vector instructions it has, of those that can matter here.
    pub simd: Vec<&'static str>,
    /// NUMA nodes with cores, at least one.
    pub numa_nodes: usize,
    /// Bytes of memory in the machine.
    pub memory: u64,
    /// Bytes of a memory page.
    pub page: usize,
}

impl CpuInfo {
    /// This machine's processor.
    ///
    /// ```
    /// use millrace_cpu::CpuInfo;
    /// assert!(std::ptr::eq(CpuInfo::get(), CpuInfo::get()), "found out once");
    /// assert!(CpuInfo::get().page.is_power_of_two());
    /// ```
    pub fn get() -> &'static Self {
        static INFO: OnceLock<CpuInfo> = OnceLock::new();
        INFO.get_or_init(Self::detect)
    }

    /// Finds out anew what [`Self::get`] remembers.
    ///
    /// ```
    /// use millrace_cpu::CpuInfo;
    /// assert_eq!(CpuInfo::detect().name, CpuInfo::get().name);
    /// ```
    pub fn detect() -> Self {
        Self {
            name: name(),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            caches: caches(),
            simd: simd(),
            numa_nodes: node::all().len().max(1),
            memory: memory(),
            page: page(),
        }
    }

    pub(crate) fn details(&self) -> Vec<(String, String)> {
        let caches = self.caches.iter().map(|cache| {
            let kind = match cache.kind.as_str() {
                "Data" => "d",
                "Instruction" => "i",
                _ => "",
            };
            format!("L{}{kind} {}", cache.level, size(cache.bytes))
        });
        let simd = if self.simd.is_empty() { "none".to_owned() } else { self.simd.join(" ") };
        [
            ("cores", self.cores.to_string()),
            ("caches", caches.collect::<Vec<_>>().join(", ")),
            ("simd", simd),
            ("numa nodes", self.numa_nodes.to_string()),
            ("memory", size(self.memory)),
            ("page", size(self.page as u64)),
        ]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

/// Bytes as people write them.
fn size(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit < 4 {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(value < 100.0 && value.fract() > 0.05);
    format!("{value:.digits$} {}", ["B", "KiB", "MiB", "GiB", "TiB"][unit])
}

/// What a file of the system begins with, by one read: asking for its length first, and for more in the end, takes as long
/// again, and there are many files.
fn beginning(path: impl AsRef<Path>) -> Option<String> {
    let mut bytes = [0; 4096];
    let read = fs::File::open(path).ok()?.read(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes[..read]).trim().to_owned())
}

fn name() -> String {
    let info = beginning("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    match model {
        Some((_, name)) => name.split_whitespace().collect::<Vec<_>>().join(" "),
        None => format!("{} processor", std::env::consts::ARCH),
    }
}

fn caches() -> Vec<Cache> {
    let cache = |index: u32| {
        let folder = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
        let (level, kind) = (beginning(format!("{folder}/level"))?.parse().ok()?, beginning(format!("{folder}/type"))?);
        let text = beginning(format!("{folder}/size"))?;
        let bytes = match text.split_at(text.len().checked_sub(1)?) {
            (number, "K") => number.parse::<u64>().ok()? << 10,
            (number, "M") => number.parse::<u64>().ok()? << 20,
            _ => text.parse().ok()?,
        };
        Some(Cache { level, kind, bytes })
    };
    (0..).map_while(cache).collect()
}

#[cfg(unix)]
fn sysconf(name: libc::c_int) -> Option<u64> {
    // SAFETY: asks for a number.
    u64::try_from(unsafe { libc::sysconf(name) }).ok().filter(|&n| n > 0)
}

#[cfg(unix)]
fn page() -> usize {
    sysconf(libc::_SC_PAGESIZE).map_or(4096, |n| n as usize)
}

#[cfg(unix)]
fn memory() -> u64 {
    sysconf(libc::_SC_PHYS_PAGES).map_or(1 << 32, |pages| pages * page() as u64)
}

#[cfg(not(unix))]
fn page() -> usize {
    4096
}

#[cfg(not(unix))]
fn memory() -> u64 {
    1 << 32
}

macro_rules! detect {
    ($test:ident: $($feature:tt)+) => {
        [$(($feature, std::arch::$test!($feature))),+].into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
    };
}

#[cfg(target_arch = "x86_64")]
fn simd() -> Vec<&'static str> {
    detect!(is_x86_feature_detected: "sse4.2" "avx" "avx2" "fma" "f16c" "avx512f" "avx512bw" "avx512vl" "avx512vnni" "avxvnni" "avx512bf16" "avx512fp16")
}

#[cfg(target_arch = "aarch64")]
fn simd() -> Vec<&'static str> {
    detect!(is_aarch64_feature_detected: "neon" "fp16" "dotprod" "i8mm" "bf16" "sve" "sve2")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn simd() -> Vec<&'static str> {
    Vec::new()
}

/// Degrees Celsius of the hottest thermal zone, where the system has one.
pub(crate) fn temperature() -> Option<f32> {
    hottest(Path::new("/sys/class/thermal"))
}

fn hottest(zones: &Path) -> Option<f32> {
    let read = |zone: fs::DirEntry| -> Option<f32> {
        let thousandths: f32 = fs::read_to_string(zone.path().join("temp")).ok()?.trim().parse().ok()?;
        Some(thousandths / 1000.0)
    };
    fs::read_dir(zones).ok()?.flatten().filter_map(read).reduce(f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_what_is_found() {
        assert_eq!(*CpuInfo::get(), CpuInfo::detect());
        assert!(std::ptr::eq(CpuInfo::get(), CpuInfo::get()));
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(size(512), "512 B");
        assert_eq!(size(48 << 10), "48 KiB");
        assert_eq!(size(3 << 19), "1.5 MiB");
    }

    #[test]
    fn the_hottest_zone_is_the_temperature() {
        let zones = tempfile::tempdir().unwrap();
        let zones = zones.path();
        for (zone, text) in [("thermal_zone0", "41000\n"), ("thermal_zone1", "56500\n"), ("cooling_device0", "")] {
            fs::create_dir_all(zones.join(zone)).unwrap();
            if !text.is_empty() {
                fs::write(zones.join(zone).join("temp"), text).unwrap();
            }
        }
        assert_eq!(hottest(zones), Some(56.5));
        fs::remove_dir_all(zones).unwrap();
        assert_eq!(hottest(zones), None);
    }
}
