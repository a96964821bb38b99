//! Where tensors live and how they are made.

use std::{
    fmt,
    path::Path,
    sync::{Arc, OnceLock},
};

use bytemuck::Pod;
use bytes::Bytes;
use millrace_core::{Buffer, Device, DeviceKind, Kernel, Request, Stream};

use crate::{
    Element, Error, Result, Tensor,
    check::{Call, Check},
    dtype::DType,
    layout::{Layout, Shape},
    ops::{self, Family, create, fft},
    tune::{Op, Tuner},
};

/// A place for tensors: a device, a stream on it, and the kernels that were used so far. Clones are handles of the same
/// place; only tensors of one place go together.
///
/// ```
/// use millrace::tensor::Tensors;
/// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
/// let x = tensors.arange(0.0, 1.0, 6)?.reshape(&[2, 3])?;
/// assert_eq!(x.sum(&[0])?.to_vec::<f32>()?, [3.0, 5.0, 7.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Tensors {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    stream: Stream,
    /// By family and number: found without looking anything up.
    kernels: [Box<[OnceLock<Kernel>]>; Family::COUNT],
    fft: fft::Plans,
    tuner: Tuner,
    check: Option<Check>,
}

impl Tensors {
    /// A place on a device, with a stream of its own. Operations go the fastest ways that are known of the device.
    pub fn on(device: &Device) -> Result<Self> {
        Self::tuned(device, &Tuner::shared(device))
    }

    /// A place on a device whose operations go the ways that a tuner says.
    pub fn tuned(device: &Device, tuner: &Tuner) -> Result<Self> {
        Self::new(device, tuner, Check::from_environment(device))
    }

    /// A place on a device whose operations are done on the CPU as well, to find the first one that differs. Its inputs are
    /// saved in the folder, or in the system's one for temporary files. With the environment variable `MILLRACE_CHECK` all
    /// places on other devices than the CPU are checked.
    pub fn checked(device: &Device, folder: Option<&Path>) -> Result<Self> {
        Self::new(device, &Tuner::shared(device), Some(Check::new(device, folder)?))
    }

    pub(crate) fn unchecked(device: &Device, tuner: &Tuner) -> Result<Self> {
        Self::new(device, tuner, None)
    }

    fn new(device: &Device, tuner: &Tuner, check: Option<Check>) -> Result<Self> {
        let kernels = Family::ALL.map(|family| (0..family.kernels()).map(|_| OnceLock::new()).collect());
        Ok(Self {
            inner: Arc::new(Inner {
                device: device.clone(),
                stream: device.stream()?,
                kernels,
                fft: fft::Plans::default(),
                tuner: tuner.clone(),
                check,
            }),
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The stream that operations run on, in order.
    pub fn stream(&self) -> &Stream {
        &self.inner.stream
    }

    /// Waits until every operation so far has finished, and brings the first error that nobody saw.
    pub fn synchronize(&self) -> Result<()> {
        self.inner.stream.synchronize()?;
        match self.inner.check.as_ref().and_then(Check::untold) {
            Some(mismatch) => Err(Error::Differs(Box::new(mismatch))),
            None => Ok(()),
        }
    }

    /// A tensor of these elements: `f32`, `i32`, `bool` or [`Complex32`](crate::Complex32). They are copied.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let t = tensors.from_slice(&[true, false], &[2])?;
    /// assert_eq!(t.to_vec::<bool>()?, [true, false]);
    /// assert!(tensors.from_slice(&[1, 2, 3], &[2]).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_slice<T: Element>(&self, elements: &[T], shape: &[usize]) -> Result<Tensor> {
        let tensor = self.sized("from_slice", T::DTYPE, elements.len(), shape)?;
        if let Some(buffer) = tensor.buffer() {
            let words: Vec<T::Word> = elements.iter().map(|element| element.to_word()).collect();
            self.enqueue(buffer.write(0, Bytes::from_owner(Words(words))))?;
        }
        Ok(tensor)
    }

    /// A tensor of these elements, which are not copied where the device can read them in place.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let t = tensors.from_vec(vec![1.0f32; 6], &[3, 2])?;
    /// assert_eq!(t.shape(), [3, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_vec<T: Element<Word = T> + Pod>(&self, elements: Vec<T>, shape: &[usize]) -> Result<Tensor> {
        let shape = Shape::new("from_vec", shape)?;
        check_elements("from_vec", elements.len(), &shape)?;
        let n = shape.elements();
        let bytes = Bytes::from_owner(Words(elements));
        let buffer = match self.device().info().kind {
            _ if n == 0 => None,
            DeviceKind::Cpu => Some(self.device().adopt(bytes)?),
            _ => {
                let buffer = self.device().allocate(n * T::DTYPE.size())?;
                self.enqueue(buffer.write(0, bytes))?;
                Some(buffer)
            }
        };
        Ok(Tensor::new(self.clone(), buffer, Layout::contiguous(shape), T::DTYPE))
    }

    fn sized(&self, op: &'static str, dtype: DType, given: usize, shape: &[usize]) -> Result<Tensor> {
        let shape = Shape::new(op, shape)?;
        check_elements(op, given, &shape)?;
        self.output(dtype, shape)
    }

    /// All zeros, `f32`.
    pub fn zeros(&self, shape: &[usize]) -> Result<Tensor> {
        self.full(shape, 0.0f32)
    }

    /// All ones, `f32`.
    pub fn ones(&self, shape: &[usize]) -> Result<Tensor> {
        self.full(shape, 1.0f32)
    }

    /// One value everywhere.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// assert_eq!(tensors.full(&[2, 2], 7)?.to_vec::<i32>()?, [7; 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn full<T: Element>(&self, shape: &[usize], value: T) -> Result<Tensor> {
        let shape = Shape::new("full", shape)?;
        create::full(self, shape, T::DTYPE, value.to_bits())
    }

    /// One value without axes.
    pub fn scalar<T: Element>(&self, value: T) -> Result<Tensor> {
        self.full(&[], value)
    }

    /// `len` elements: `start`, `start + step`, … of `f32` or `i32`.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// assert_eq!(tensors.arange(1, -2, 3)?.to_vec::<i32>()?, [1, -1, -3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn arange<T: Element>(&self, start: T, step: T, len: usize) -> Result<Tensor> {
        create::arange(self, T::DTYPE, start.to_bits(), step.to_bits(), Shape::new("arange", &[len])?)
    }

    /// Numbers from zero (inclusive) to one (exclusive), the same for the same seed on every device.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let t = tensors.rand(&[100], 1)?;
    /// assert!(t.to_vec::<f32>()?.iter().all(|x| (0.0..1.0).contains(x)));
    /// assert_eq!(t.to_vec::<f32>()?, tensors.rand(&[100], 1)?.to_vec::<f32>()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rand(&self, shape: &[usize], seed: u64) -> Result<Tensor> {
        create::rand(self, Shape::new("rand", shape)?, seed)
    }

    /// Memory that a launch is about to write; none if there are no elements.
    #[inline]
    pub(crate) fn room(&self, dtype: DType, shape: &Shape) -> Result<Option<Buffer>> {
        Ok(match shape.elements() {
            0 => None,
            n => Some(self.inner.device.allocate(n * dtype.size())?),
        })
    }

    /// A tensor that a launch is about to write.
    #[inline]
    pub(crate) fn output(&self, dtype: DType, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::new(self.clone(), self.room(dtype, &shape)?, Layout::contiguous(shape), dtype))
    }

    /// A family's kernel by its number, compiled when first asked for.
    #[inline]
    pub(crate) fn kernel(&self, family: Family, number: usize) -> Result<&Kernel> {
        let place = &self.inner.kernels[family as usize][number];
        match place.get() {
            Some(kernel) => Ok(kernel),
            None => {
                let kernel = self.inner.device.kernel(&ops::spec(family, number))?;
                Ok(place.get_or_init(|| kernel))
            }
        }
    }

    /// What says which ways operations go.
    pub fn tuner(&self) -> &Tuner {
        &self.inner.tuner
    }

    /// What compares operations with the CPU's, if something does.
    pub fn check(&self) -> Option<&Check> {
        self.inner.check.as_ref()
    }

    /// Shows an operation to whoever compares it with the CPU's.
    #[inline]
    pub(crate) fn watch(&self, call: impl FnOnce() -> Call, inputs: &[&Tensor], out: &Tensor) {
        if let Some(check) = &self.inner.check {
            check.watch(&call(), inputs, out);
        }
    }

    /// The same for operations some of whose inputs may be missing.
    #[inline]
    pub(crate) fn watch_some(&self, call: impl FnOnce() -> Call, inputs: &[Option<&Tensor>], out: &Tensor) {
        if let Some(check) = &self.inner.check {
            let inputs: Vec<_> = inputs.iter().flatten().copied().collect();
            check.watch(&call(), &inputs, out);
        }
    }

    /// The number of an operation's way.
    #[inline]
    pub(crate) fn way(&self, op: Op, kind: usize, sizes: &[usize]) -> usize {
        self.inner.tuner.way(self, op, kind, sizes)
    }

    /// What is kept for Fourier transforms.
    pub(crate) fn fft(&self) -> &fft::Plans {
        &self.inner.fft
    }

    /// Hands a command to the stream. What goes wrong with it comes up when somebody waits.
    #[inline]
    pub(crate) fn enqueue(&self, command: impl Request) -> Result<()> {
        Ok(self.inner.stream.enqueue(command)?)
    }

    /// Whether what one thread can do is bounded, so that long work needs several launches.
    #[inline]
    pub(crate) fn is_bounded(&self) -> bool {
        self.inner.device.info().kind != DeviceKind::Cpu
    }

    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

fn check_elements(op: &'static str, given: usize, shape: &Shape) -> Result<()> {
    match shape.elements() {
        expected if expected == given => Ok(()),
        expected => Err(Error::Elements { op, given, expected, shape: (*shape).into() }),
    }
}

/// Numbers that are bytes for others.
pub(crate) struct Words<T>(pub(crate) Vec<T>);

impl<T: bytemuck::NoUninit> AsRef<[u8]> for Words<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl fmt::Debug for Tensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tensors").field(&self.inner.device).finish()
    }
}
