//! What travels between kernels: plain messages and archives, and how one becomes the other on the way.

use rkyv::{
    Deserialize, Portable,
    api::high::{HighDeserializer, HighValidator},
    bytecheck::CheckBytes,
    rancor,
    util::AlignedVec,
};

use crate::{
    Archivable, Archive, ArchivedHandler, ArchivedResident, Handler, Message, Moment, Resident, Result,
    archive::{corrupt, kind_of},
    port::Attachment,
    resident::Base,
};

/// Makes a message of one form into one of the other: its type and its bytes.
pub(crate) type Translate = fn(&[u8]) -> Result<(u32, AlignedVec)>;

pub(crate) mod sealed {
    use super::{Base, Translate};

    pub trait Carried {}

    pub trait Becomes<To> {
        /// None if the bytes are the same.
        const TRANSLATE: Option<Translate>;
    }

    pub trait Handle {
        fn base(&self) -> &Base;
    }
}

/// What a kernel takes or gives: a plain [`Message`], or an [`Archive`] of something.
///
/// ```
/// use millrace_resident::{Archive, Carried};
/// fn is_carried<T: Carried>() {}
/// is_carried::<()>();
/// is_carried::<Archive<Vec<String>>>();
/// ```
pub trait Carried: sealed::Carried + Send + 'static {}

impl<T: sealed::Carried + Send + 'static> Carried for T {}
impl<M: Message> sealed::Carried for M {}
impl<M: Archivable> sealed::Carried for Archive<M> {}

/// What arrives as something else without the host in between. Everything arrives as itself; a message that can be
/// archived arrives as an archive where one is taken, and the other way round.
///
/// ```
/// use millrace_resident::{Archive, Becomes, Message, rkyv};
/// #[derive(Clone, Copy, Message, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
/// # #[rkyv(crate = millrace_resident::rkyv)]
/// #[repr(C)]
/// struct Point { x: f32, y: f32 }
/// fn arrives_as<T, A: Becomes<T>>() {}
/// arrives_as::<Point, Point>();
/// arrives_as::<Archive<Point>, Point>();
/// arrives_as::<Point, Archive<Point>>();
/// ```
pub trait Becomes<To>: sealed::Becomes<To> {}

impl<From: sealed::Becomes<To>, To> Becomes<To> for From {}

impl<M: Carried> sealed::Becomes<M> for M {
    const TRANSLATE: Option<Translate> = None;
}

impl<M: Message + Archivable> sealed::Becomes<Archive<M>> for M {
    const TRANSLATE: Option<Translate> = Some(|bytes| {
        let archive = Archive::new(&M::read_from(bytes)?)?;
        Ok((kind_of::<M>(), archive.into_bytes()))
    });
}

impl<M> sealed::Becomes<M> for Archive<M>
where
    M: Message + Archivable,
    M::Archived: Portable
        + for<'a> CheckBytes<HighValidator<'a, rancor::Error>>
        + Deserialize<M, HighDeserializer<rancor::Error>>,
{
    const TRANSLATE: Option<Translate> = Some(|bytes| {
        let archived = crate::archive::checked::<M>(bytes)?;
        let message = rkyv::api::high::deserialize::<M, rancor::Error>(archived).map_err(|error| corrupt(&error))?;
        let mut plain = AlignedVec::with_capacity(size_of::<M>());
        plain.extend_from_slice(message.as_bytes());
        Ok((M::TYPE, plain))
    });
}

/// A handle of a kernel that others can be linked to: [`Resident`] and [`ArchivedResident`].
///
/// ```
/// # use millrace_resident::*;
/// /// Sends the answers of one kernel to several others of any kind.
/// fn spread<A: Linkable, B: Linkable>(from: &A, to: &[B]) -> Vec<Linked>
/// where
///     A::Gives: Becomes<A::Gives> + Becomes<B::Takes>,
/// {
///     let topic = Topic::<A::Gives>::new();
///     topic.publish_from(from);
///     to.iter().map(|kernel| topic.subscribe(kernel, Delivery::Lossless)).collect()
/// }
/// # struct Nothing;
/// # impl Handler for Nothing {
/// #     type Message = (); type Reply = (); type State = ();
/// #     fn state(&self) {}
/// #     fn handle(&mut self, _: &mut (), _: &(), _: &mut Scope<'_, ()>) {}
/// # }
/// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
/// # let device = runtime.open("cpu")?;
/// let launch = || device.launch(Nothing, LaunchOptions::default());
/// assert_eq!(spread(&launch()?, &[launch()?, launch()?]).len(), 2);
/// # Ok::<(), Error>(())
/// ```
pub trait Linkable: sealed::Handle {
    /// What it is sent.
    type Takes: Carried;
    /// What it answers.
    type Gives: Carried;
}

impl<H: Handler> sealed::Handle for Resident<H> {
    fn base(&self) -> &Base {
        &self.base
    }
}

impl<H: Handler> Linkable for Resident<H> {
    type Takes = H::Message;
    type Gives = H::Reply;
}

impl<H: ArchivedHandler> sealed::Handle for ArchivedResident<H> {
    fn base(&self) -> &Base {
        &self.base
    }
}

impl<H: ArchivedHandler> Linkable for ArchivedResident<H> {
    type Takes = Archive<H::Message>;
    type Gives = Archive<H::Reply>;
}

/// A message on its way from a kernel to others.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) kind: u32,
    pub(crate) clock: Moment,
    pub(crate) bytes: Vec<u8>,
    /// All of it, if it is an archive that is not in the bytes. Everybody gets this very one.
    pub(crate) attachment: Option<Attachment>,
}

impl Letter {
    /// The message, wherever it is.
    pub(crate) fn whole(&self) -> &[u8] {
        match &self.attachment {
            Some(Attachment::Archive(archive)) => archive,
            _ => &self.bytes,
        }
    }
}
