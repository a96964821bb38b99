//! A launch: a kernel with buffers, parameters and a geometry.

use std::time::Duration;

use arrayvec::ArrayVec;
use bytemuck::NoUninit;
use millrace_ring::{Loan, Recycle};

use super::{
    Kernel,
    code::Spread,
    spec::{Dim3, MAX_BINDINGS, MAX_PARAMS},
};
use crate::{
    Error, Result,
    memory::{Buffer, BufferSlice},
};

/// What a launch consists of, for backends.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// use millrace::{Access, CpuKernel, Dim3, KernelSpec, Spread};
/// let spec = KernelSpec::new("k").binding::<u8>("x", Access::Read).params::<u8>().cpu(CpuKernel::whole(|_| {}));
/// let (kernel, buffer) = (device.kernel(&spec)?, device.allocate(8)?);
/// let launch = kernel.launch().bind(buffer.slice(2..6)).params(&7u8).grid([3, 2]);
/// let body = launch.body();
/// assert_eq!((&**body.kernel().spec().name(), body.bindings()[0].range(), body.params()), ("k", 2..6, &[7][..]));
/// assert_eq!((body.grid(), body.block(), body.spread()), (Dim3::from([3, 2]), Dim3::ONE, Spread::Usual));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct LaunchBody {
    pub(super) kernel: Option<Kernel>,
    bindings: ArrayVec<BufferSlice, MAX_BINDINGS>,
    /// Bindings that were given, also beyond what fits.
    bound: usize,
    params: ArrayVec<u8, MAX_PARAMS>,
    /// Bytes of parameters that were given, also beyond what fits.
    params_given: usize,
    grid: Dim3,
    pub(super) block: Dim3,
    spread: Spread,
}

impl LaunchBody {
    /// The kernel to run.
    pub fn kernel(&self) -> &Kernel {
        match &self.kernel {
            Some(kernel) => kernel,
            None => unreachable!("a launch is made by its kernel"),
        }
    }

    /// What is bound, in the kernel's order.
    pub fn bindings(&self) -> &[BufferSlice] {
        &self.bindings
    }

    /// The parameters' bytes.
    pub fn params(&self) -> &[u8] {
        &self.params
    }

    /// Groups.
    pub fn grid(&self) -> Dim3 {
        self.grid
    }

    /// Threads of a group.
    pub fn block(&self) -> Dim3 {
        self.block
    }

    /// Over how many threads of a CPU it goes.
    pub fn spread(&self) -> Spread {
        self.spread
    }
}

impl Recycle for LaunchBody {
    fn recycle(&mut self) {
        self.params.clear();
        (self.bound, self.params_given) = (0, 0);
        (self.grid, self.block, self.spread) = (Dim3::ONE, Dim3::ONE, Spread::Usual);
        // Last, because what they own may panic when it is dropped; both are gone from here in any case.
        let _kernel = self.kernel.take();
        self.bindings.clear();
    }
}

/// A kernel with its arguments. It is written in place into memory that is used again, so building one allocates
/// nothing.
///
/// ```
/// use millrace::{Access, CpuKernel, KernelSpec, Spread};
/// let device = millrace::runtime().open("cpu")?;
/// let spec = KernelSpec::new("where")
///     .binding::<u32>("out", Access::Overwrite)
///     .params::<u32>()
///     .cpu(CpuKernel::per_group(|group| {
///         let (id, add) = (group.id, group.params::<u32>());
///         group.output::<u32>(0).fill(100 * id.y + id.x + add);
///     }));
/// let (stream, kernel, out) = (device.stream()?, device.kernel(&spec)?, device.allocate(4 * 6)?);
/// stream.run(kernel.launch().bind(&out).grid([3, 2]).params(&7u32))?;
/// assert_eq!(stream.run(out.read(..))?.to::<u32>(), [7, 8, 9, 107, 108, 109]);
/// let wide = kernel.launch().block([4, 2]).spread(Spread::All);
/// assert_eq!((wide.body().block().volume(), wide.body().spread()), (8, Spread::All));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Launch {
    pub(super) body: Loan<LaunchBody>,
}

impl Launch {
    /// Binds the next buffer, or a part of one.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// use millrace::{Access, CpuKernel, Error, KernelSpec};
    /// let spec = KernelSpec::new("k").binding::<f32>("x", Access::ReadWrite).cpu(CpuKernel::whole(|_| {}));
    /// let (stream, kernel, buffer) = (device.stream()?, device.kernel(&spec)?, device.allocate(16)?);
    /// assert!(stream.run(kernel.launch().bind(buffer.slice(4..))).is_ok());
    /// assert!(matches!(stream.run(kernel.launch()), Err(Error::Bindings { expected: 1, given: 0, .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn bind(mut self, slice: impl Into<BufferSlice>) -> Self {
        self.body.bound += 1;
        // Too many are counted, and answered with an error when the launch is submitted.
        let _ = self.body.bindings.try_push(slice.into());
        self
    }

    /// Sets the parameters.
    #[inline]
    pub fn params<T: NoUninit>(mut self, params: &T) -> Self {
        let bytes = bytemuck::bytes_of(params);
        self.body.params.clear();
        self.body.params_given = bytes.len();
        // Longer than any kernel's: answered with an error when the launch is submitted.
        let fits = &bytes[..bytes.len().min(MAX_PARAMS)];
        let _ = self.body.params.try_extend_from_slice(fits);
        self
    }

    /// Sets the number of groups.
    pub fn grid(mut self, groups: impl Into<Dim3>) -> Self {
        self.body.grid = groups.into();
        self
    }

    /// Sets the number of threads of a group.
    pub fn block(mut self, threads: impl Into<Dim3>) -> Self {
        self.body.block = threads.into();
        self
    }

    /// Sets over how many threads of a CPU device it goes.
    pub fn spread(mut self, spread: Spread) -> Self {
        self.body.spread = spread;
        self
    }

    /// Sets a one-dimensional geometry of at least `n` threads, in groups of `block`.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// use millrace::{CpuKernel, Dim3, KernelSpec};
    /// let kernel = device.kernel(&KernelSpec::new("k").cpu(CpuKernel::whole(|_| {})))?;
    /// let launch = kernel.launch().over(1000, 64);
    /// assert_eq!((launch.body().grid(), launch.body().block()), (Dim3::from(16), Dim3::from(64)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn over(self, n: usize, block: u32) -> Self {
        let groups = u32::try_from(n.div_ceil(block.max(1) as usize)).unwrap_or(u32::MAX);
        self.grid(groups).block(block)
    }

    /// For backends.
    pub fn body(&self) -> &LaunchBody {
        &self.body
    }

    pub(crate) fn check(&self, device: u64, limits: &crate::backend::Limits) -> Result<()> {
        let body = &*self.body;
        let kernel = &*body.kernel().inner;
        if kernel.device != device {
            return Err(Error::WrongDevice { what: "kernel" });
        }
        let declared = &kernel.spec.bindings;
        if body.bound != declared.len() {
            return Err(Error::Bindings {
                kernel: kernel.spec.name.clone(),
                expected: declared.len(),
                given: body.bound,
            });
        }
        if body.params_given != kernel.spec.params {
            return Err(Error::Parameters {
                kernel: kernel.spec.name.clone(),
                expected: kernel.spec.params,
                given: body.params_given,
            });
        }
        for (i, (slice, binding)) in body.bindings.iter().zip(declared).enumerate() {
            slice.check(device, binding.access.writes())?;
            for value in [slice.offset, slice.len] {
                if value % binding.element != 0 {
                    return Err(Error::Misaligned { value: value as u64, align: binding.element as u64 });
                }
            }
            for (j, other) in body.bindings[..i].iter().enumerate() {
                if other.buffer.same_as(&slice.buffer) && (binding.access.writes() || declared[j].access.writes()) {
                    return Err(Error::Aliased { first: j, second: i });
                }
            }
        }
        let (grid, block) = (body.grid.to_array(), body.block.to_array());
        let groups_fit = grid.iter().zip(limits.groups).all(|(&n, limit)| (1..=limit).contains(&n));
        let block_fits = (1..=u64::from(limits.threads)).contains(&body.block.volume());
        if !groups_fit || !block_fits {
            return Err(Error::Geometry { groups: grid, block });
        }
        Ok(())
    }

    /// The same launch once more, for another stream.
    pub(crate) fn duplicate(&self) -> Result<Self> {
        let mut body = self.body.sibling().ok_or(Error::TooManyTickets(millrace_ring::MAX_OUT))?;
        body.kernel.clone_from(&self.body.kernel);
        body.bindings.clone_from(&self.body.bindings);
        body.params.clone_from(&self.body.params);
        (body.bound, body.params_given) = (self.body.bound, self.body.params_given);
        (body.grid, body.block, body.spread) = (self.body.grid, self.body.block, self.body.spread);
        Ok(Self { body })
    }

    /// Whether it is known to take less than so long.
    pub(crate) fn is_within(&self, time: Duration) -> bool {
        self.body.kernel().longest().is_some_and(|longest| longest < time)
    }
}

impl From<Buffer> for BufferSlice {
    fn from(buffer: Buffer) -> Self {
        let len = buffer.len();
        Self { buffer, offset: 0, len }
    }
}
