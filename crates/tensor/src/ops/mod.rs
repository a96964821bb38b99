//! The operations, one folder per family. A family numbers its kernels; to add a family, add its folder and one line
//! below.

use bytemuck::{Pod, Zeroable};
use millrace_core::{Access, Dim3, KernelSpec, Spread};

use crate::{
    Error, Result, Tensor, Tensors,
    layout::{Layout, Shape, WALKED, merge},
    tune::Op,
};

macro_rules! families {
    ($($family:ident in $folder:ident,)+) => {
        $(pub(crate) mod $folder;)+

        /// A folder of operations.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Family {
            $(#[doc = concat!("See `ops/", stringify!($folder), "`.")] $family,)+
        }

        impl Family {
            pub(crate) const ALL: [Self; [$(stringify!($family)),+].len()] = [$(Self::$family),+];

            /// How many kernels it numbers.
            pub(crate) fn kernels(self) -> usize {
                match self {
                    $(Self::$family => $folder::KERNELS,)+
                }
            }
        }

        /// A family's kernel by its number.
        pub(crate) fn spec(family: Family, number: usize) -> KernelSpec {
            match family {
                $(Family::$family => $folder::spec(number),)+
            }
        }
    };
}
families! {
    Create in create,
    Copy in copy,
    Unary in unary,
    Binary in binary,
    Select in select,
    Reduce in reduce,
    Softmax in softmax,
    Matmul in matmul,
    Sparse in sparse,
    Fft in fft,
    Recurrent in recurrent,
    Quant in quant,
    Conv in conv,
    Pool in pool,
    Norm in norm,
}

impl Family {
    pub(crate) const COUNT: usize = Self::ALL.len();
}

/// Threads of a group,
pub(crate) const BLOCK: u32 = 64;
/// and of one whose threads work on many vectors of four.
const WIDE: u32 = 256;
/// Elements up to which groups are narrow: they are spread over more of them, and a software driver goes through all
/// threads of a group, also those that have nothing to do.
const FEW: u32 = 1 << 14;
/// Groups along x when there are more than fit; the rest goes along y.
const ROW: usize = 32_768;
/// Elements of which one row of wide groups does all.
const IN_A_ROW: u32 = 16 * WIDE * ROW as u32;

/// Groups for at least `threads` threads.
#[inline]
pub(crate) fn grid(threads: usize) -> Dim3 {
    folded(threads.div_ceil(BLOCK as usize))
}

/// So many groups, or a few more.
#[inline]
fn folded(groups: usize) -> Dim3 {
    let groups = groups.max(1);
    if groups <= ROW { Dim3::from(groups as u32) } else { Dim3::from([ROW as u32, groups.div_ceil(ROW) as u32]) }
}

/// WGSL that every kernel begins with: how a thread knows its number, and numbers that do not compare.
const COMMON: &str = include_str!("common.wgsl");

/// A WGSL template with its names replaced.
pub(crate) fn wgsl(template: &str, names: &[(&str, &str)]) -> String {
    let start = format!("{COMMON}{template}");
    names.iter().fold(start, |source, (name, text)| source.replace(name, text))
}

/// WGSL for `together_NAME`, which folds what the threads of a group bring: `fold` is what becomes of `a` and `b`.
fn together_in_a_group(name: &str, fold: &str) -> String {
    include_str!("together.wgsl").replace("{NAME}", name).replace("{FOLD}", fold)
}

/// How a GPU does rows that are reduced and then gone through again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// A thread each.
    Thread,
    /// A group each.
    Group,
    /// By reductions and elementwise operations, one after the other.
    Whole,
}

impl Rows {
    /// The most elements that a thread goes through,
    const LONGEST: usize = 2048;
    /// and what it does at once if nobody helps.
    const SHORT: usize = 256;
    /// As many threads keep a GPU busy without help,
    const MANY: usize = 8192;
    /// and so many groups.
    const GROUPS: usize = 64;

    fn of(rows: usize, length: usize) -> Self {
        match length {
            _ if length <= Self::SHORT || length <= Self::LONGEST && rows >= Self::MANY => Self::Thread,
            _ if length <= Self::LONGEST => Self::Group,
            _ if length <= Self::LONGEST * BLOCK as usize && rows >= Self::GROUPS => Self::Group,
            _ => Self::Whole,
        }
    }

    /// Groups for so many of them.
    fn grid(self, rows: usize) -> Dim3 {
        if self == Self::Group { folded(rows) } else { grid(rows) }
    }
}

/// A kernel of `inputs` words that are read and one that is written.
pub(crate) fn kernel<P: Pod>(name: String, inputs: &[&'static str]) -> KernelSpec {
    let spec = KernelSpec::new(name).params::<P>().block(BLOCK);
    let spec = inputs.iter().fold(spec, |spec, &input| spec.binding::<u32>(input, Access::Read));
    spec.binding::<u32>("out", Access::Overwrite)
}

/// How elementwise kernels find their elements: the parameters of `elementwise.wgsl`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Walk {
    /// Elements of the output.
    pub(crate) n: u32,
    /// Axes, at most [`WALKED`].
    pub(crate) rank: u32,
    /// One more than the operand that is `value` everywhere; zero if there is none.
    pub(crate) scalar: u32,
    /// Its 32 bits.
    pub(crate) value: u32,
    pub(crate) shape: [u32; WALKED],
    pub(crate) offsets: [u32; 3],
    pub(crate) strides: [[i32; WALKED]; 3],
}

/// WGSL for [`Walk`].
pub(crate) const ELEMENTWISE: &str = include_str!("elementwise.wgsl");

impl Walk {
    /// A walk over operands that all have the output's shape. None if it has too many axes.
    #[inline]
    pub(crate) fn new<const N: usize>(operands: [&Layout; N]) -> Option<Self> {
        let shape = &operands[0].shape;
        let mut walk = Self::zeroed();
        walk.n = shape.elements() as u32;
        operands.iter().enumerate().for_each(|(i, operand)| walk.offsets[i] = operand.offset as u32);
        let (rank, dims, strides) = merge(shape, operands.map(|operand| &operand.strides));
        if rank > WALKED {
            return None;
        }
        walk.rank = rank as u32;
        for axis in 0..rank {
            walk.shape[axis] = dims[axis] as u32;
            (0..N).for_each(|i| walk.strides[i][axis] = strides[i][axis] as i32);
        }
        Some(walk)
    }

    /// Whether vectors of four words can be read, written and are all there is.
    #[inline]
    fn is_packed(&self, operands: usize) -> bool {
        let aligned = |i: usize| self.strides[i][0] == 1 && self.offsets[i].is_multiple_of(4);
        self.rank == 1 && self.n.is_multiple_of(4) && (0..operands).all(|i| self.scalar == i as u32 + 1 || aligned(i))
    }

    /// The form of a kernel that is best for it.
    #[inline]
    fn form(&self, operands: usize) -> Form {
        if !self.is_packed(operands) {
            Form::Any
        } else if self.scalar != 0 || self.offsets[..operands].iter().any(|&offset| offset != 0) || self.n > IN_A_ROW {
            Form::Packed
        } else if self.n > FEW {
            Form::Straight
        } else {
            Form::Narrow
        }
    }
}

/// How the threads of an elementwise kernel find their elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// By any strides, an element each.
    Any,
    /// In vectors of four that begin anywhere, or with a number in the place of the second operand, in any number of groups.
    Packed,
    /// In vectors of four from the beginning of every buffer, in one row of groups.
    Straight,
    /// The same, for few of them.
    Narrow,
}

impl Form {
    pub(crate) const ALL: [Self; 4] = [Self::Any, Self::Packed, Self::Straight, Self::Narrow];

    /// The number of an entry's kernel of this form.
    #[inline]
    pub(crate) fn number(self, entry: usize) -> usize {
        Self::ALL.len() * entry + self as usize
    }

    /// The entry and the form that a number stands for.
    pub(crate) fn kernel(number: usize) -> (usize, Self) {
        (number / Self::ALL.len(), Self::ALL[number % Self::ALL.len()])
    }

    /// What a kernel's name ends with.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Any => "",
            Self::Packed => "_packed",
            Self::Straight => "_straight",
            Self::Narrow => "_narrow",
        }
    }

    /// Threads of a group.
    #[inline]
    pub(crate) fn block(self) -> u32 {
        match self {
            Self::Any | Self::Narrow => BLOCK,
            Self::Packed | Self::Straight => WIDE,
        }
    }

    /// The number of a thread's group, in WGSL.
    pub(crate) fn group(self) -> &'static str {
        match self {
            Self::Any | Self::Packed => "(group.y * groups.x + group.x)",
            Self::Straight | Self::Narrow => "group.x",
        }
    }

    /// Groups of a launch.
    #[inline]
    pub(crate) fn grid(self, walk: &Walk) -> Dim3 {
        match self {
            Self::Any => grid(walk.n as usize),
            // A thread does four fours that are a group apart.
            _ => folded((walk.n / 4).div_ceil(4 * self.block()) as usize),
        }
    }
}

/// Operands stretched to a common shape, ready to be walked. Those with too many axes are copied first.
pub(crate) fn walk<const N: usize>(
    op: &'static str,
    operands: [&Tensor; N],
    shape: &Shape,
) -> Result<(Walk, [Tensor; N])> {
    let stretch = |t: &Tensor| -> Result<Tensor> { Ok(t.view(t.layout().expand(op, shape)?)) };
    let stretched = try_map(operands, stretch)?;
    if let Some(walk) = Walk::new(stretched.each_ref().map(Tensor::layout)) {
        return Ok((walk, stretched));
    }
    let copied = try_map(stretched.each_ref(), copy::copy)?;
    match Walk::new(copied.each_ref().map(Tensor::layout)) {
        Some(walk) => Ok((walk, copied)),
        None => Err(Error::Rank { op, rank: shape.len(), limit: WALKED }),
    }
}

fn try_map<const N: usize>(all: [&Tensor; N], each: impl Fn(&Tensor) -> Result<Tensor>) -> Result<[Tensor; N]> {
    let mut failed = None;
    let mapped = all.map(|tensor| {
        each(tensor).unwrap_or_else(|error| {
            failed = Some(error);
            tensor.clone()
        })
    });
    failed.map_or(Ok(mapped), Err)
}

/// The geometry of an elementwise launch: the form of its kernel, and over how many threads of a CPU it goes.
#[inline]
pub(crate) fn geometry(tensors: &Tensors, kind: usize, walk: &Walk, operands: usize) -> (Form, Spread) {
    let form = walk.form(operands);
    match (tensors.way(Op::Launch, kind, &[walk.n as usize]), tensors.is_bounded()) {
        (0, _) => (form, Spread::Usual),
        (_, true) => (Form::Any, Spread::Usual),
        (way, false) => (form, spread(way)),
    }
}

/// How the ways that all operations have on a CPU spread a launch.
pub(crate) fn spread(way: usize) -> Spread {
    match way {
        1 => Spread::One,
        2 => Spread::All,
        _ => Spread::Usual,
    }
}

/// Checks that operands live in one place.
#[inline]
pub(crate) fn together(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    if a.tensors().is(b.tensors()) { Ok(()) } else { Err(Error::Strangers { op }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kernel there is.
    fn specs() -> impl Iterator<Item = KernelSpec> {
        Family::ALL.into_iter().flat_map(|family| (0..family.kernels()).map(move |number| spec(family, number)))
    }

    #[test]
    fn every_wgsl_module_is_valid() {
        use naga::valid::{Capabilities, ValidationFlags, Validator};
        for spec in specs() {
            // Some are for the CPU alone.
            let Some(source) = spec.wgsl_code() else { continue };
            let module = naga::front::wgsl::parse_str(source)
                .unwrap_or_else(|error| panic!("{}: {}", spec.name(), error.emit_to_string(source)));
            let mut validator = Validator::new(ValidationFlags::all(), Capabilities::IMMEDIATES);
            let checked = validator.validate(&module);
            checked.unwrap_or_else(|error| panic!("{}: {}", spec.name(), error.emit_to_string(source)));
            let entry = module.entry_points.iter().find(|entry| entry.name == "main").unwrap();
            assert_eq!(entry.workgroup_size, spec.block_size().to_array(), "{}", spec.name());
        }
    }

    #[test]
    fn kernels_have_names_of_their_own_and_fit_every_device() {
        let mut names: Vec<_> = specs().map(|spec| spec.name().clone()).collect();
        names.sort();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(specs().all(|spec| spec.params_len() <= millrace_core::MAX_PARAMS));
    }

    #[test]
    fn a_walk_gets_the_plainest_form_that_serves_it() {
        let walk = |n: usize, offset: usize| {
            Walk::new([&Layout { offset, ..Layout::contiguous([n].into_iter().collect()) }]).unwrap()
        };
        assert_eq!(walk(256, 0).form(1), Form::Narrow);
        assert_eq!(walk(1 << 20, 0).form(1), Form::Straight);
        assert_eq!(walk(1 << 20, 8).form(1), Form::Packed);
        let row = IN_A_ROW as usize;
        assert_eq!((walk(row, 0).form(1), Form::Straight.grid(&walk(row, 0)).y), (Form::Straight, 1));
        assert_eq!(walk(row + 4, 0).form(1), Form::Packed, "threads of one row of groups do not reach the end");
        assert_eq!(Walk { scalar: 2, ..walk(256, 0) }.form(2), Form::Packed);
        assert_eq!(walk(255, 0).form(1), Form::Any);
        assert_eq!(walk(256, 3).form(1), Form::Any);
        for (number, form) in Form::ALL.into_iter().enumerate() {
            assert_eq!((form.number(7), Form::kernel(form.number(7))), (4 * 7 + number, (7, form)));
            let threads = form.grid(&walk(1 << 18, 0)).volume() * u64::from(form.block());
            assert_eq!(threads * if form == Form::Any { 1 } else { 16 }, 1 << 18);
        }
    }

    #[test]
    fn rows_have_a_group_each_where_they_are_long_and_not_so_many_that_threads_are_enough() {
        let ways = [
            (1, 256, Rows::Thread),
            (1, 257, Rows::Group),
            (8191, 2048, Rows::Group),
            (8192, 2048, Rows::Thread),
            (63, 2049, Rows::Whole),
            (64, 2049, Rows::Group),
            (100_000, 2049, Rows::Group),
            (64, 131_072, Rows::Group),
            (64, 131_073, Rows::Whole),
        ];
        for (rows, length, way) in ways {
            assert_eq!(Rows::of(rows, length), way, "{rows} of {length}");
        }
        assert_eq!((Rows::Thread.grid(640).volume(), Rows::Group.grid(640).volume()), (10, 640));
    }

    #[test]
    fn large_grids_are_folded() {
        assert_eq!(grid(1), Dim3::ONE);
        assert_eq!(grid(65), Dim3::from(2));
        let folded = grid(i32::MAX as usize);
        assert!(folded.x <= 65_535 && folded.y <= 65_535);
        assert!(folded.volume() * u64::from(BLOCK) >= i32::MAX as u64);
    }
}
