//! Links from kernel to kernel, without the host in between, and topics on top of them.
//!
//! A linked kernel writes its answers straight into the other's inbound ring.

use std::{
    marker::PhantomData,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use rkyv::util::AlignedVec;

use crate::{
    Archivable, Archive, ArchivedHandler, ArchivedResident, Becomes, Carried, Error, Handler, Linkable, Message,
    Refused, Resident, Result,
    carry::{Letter, Translate},
    port::{Address, Attachment, Head, Outgoing, Port, lock},
    slots::Refusal,
};

/// What happens to a message when a receiver has no room.
///
/// ```
/// use millrace_resident::Delivery;
/// assert_eq!(Delivery::default(), Delivery::Lossless);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Delivery {
    /// The sending kernel waits until there is room.
    #[default]
    Lossless,
    /// The message is dropped, and counted.
    Lossy,
}

/// A way from a kernel to another.
#[derive(Debug)]
pub(crate) struct Link {
    to: Arc<Address>,
    pub(crate) lossy: bool,
    /// Of a receiver that takes the other form of what the sender gives.
    translate: Option<Translate>,
    dropped: AtomicU64,
}

impl Link {
    fn new(to: &Arc<Port>, delivery: Delivery, translate: Option<Translate>) -> Arc<Self> {
        let lossy = delivery == Delivery::Lossy;
        Arc::new(Self { to: to.address(), lossy, translate, dropped: AtomicU64::new(0) })
    }

    /// The receiver, if there is any; of one that was lost and has come back, the one that it is now.
    pub(crate) fn to(&self) -> Option<Arc<Port>> {
        self.to.find()
    }

    /// Whether nobody takes anything there any more.
    fn leads_nowhere(&self) -> bool {
        self.to().is_none_or(|to| to.is_gone())
    }

    /// Whether a device can copy the bytes as they are.
    pub(crate) fn is_direct(&self) -> bool {
        self.translate.is_none()
    }

    /// Puts a message into the receiver's ring. `Full` if the sender has to wait: for room, or for a receiver that was
    /// lost and can come back.
    pub(crate) fn deliver(&self, letter: &Letter) -> Result<(), Refusal> {
        let Some(to) = self.to() else { return Err(Refusal::Closed) };
        let translated;
        let (kind, bytes, mut attachment) = match self.translate {
            None => (letter.kind, &*letter.bytes, letter.attachment.clone()),
            Some(translate) => match translate(letter.whole()) {
                Ok((kind, bytes)) => {
                    translated = bytes;
                    (kind, &*translated, None)
                }
                Err(error) => {
                    tracing::warn!(%error, "a message could not be translated for a linked kernel");
                    return Err(Refusal::Closed);
                }
            },
        };
        let head = Head { high: false, kind, flags: 0, clock: letter.clock, buffer: (0, 0), quietly: false };
        let inline = bytes.len() <= to.layout.in_payload();
        if !inline {
            let mut beside = AlignedVec::with_capacity(bytes.len());
            beside.extend_from_slice(bytes);
            attachment = Some(Attachment::Archive(Arc::new(beside)));
        }
        let bytes = if inline { bytes } else { &[] };
        match to.inject(&mut Outgoing { head, bytes, attachment: &mut attachment }) {
            Ok(_) => Ok(()),
            Err(Refusal::Closed) if to.can_return() => Err(Refusal::Full),
            Err(refusal) => Err(refusal),
        }
    }

    /// [`Self::deliver`] for a sender that waits or not, as the link says. False if it has to wait.
    pub(crate) fn deliver_or_drop(&self, letter: &Letter) -> Option<Delivered> {
        match self.deliver(letter) {
            Ok(()) => Some(Delivered::Sent),
            Err(Refusal::Full) if !self.lossy => None,
            // Lossy and full, or nobody is there any more.
            Err(_) => {
                self.add_dropped(1);
                Some(Delivered::Dropped)
            }
        }
    }

    pub(crate) fn add_dropped(&self, messages: u64) {
        self.dropped.fetch_add(messages, Ordering::Relaxed);
    }
}

/// What became of a message on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivered {
    Sent,
    Dropped,
}

/// Where a kernel's answers go instead of to the host.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Links {
    /// Whether there are any, for the kernel, which looks at every message.
    any: AtomicBool,
    list: Mutex<Arc<Vec<Arc<Link>>>>,
    /// Called after a change, for a device that keeps links in its own memory.
    changed: Changed,
}

/// Something to be called, once it is known.
#[derive(Default)]
struct Changed(Mutex<Option<Arc<dyn Fn() + Send + Sync>>>);

impl std::fmt::Debug for Changed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Changed")
    }
}

impl Links {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    pub(crate) fn all(&self) -> Arc<Vec<Arc<Link>>> {
        lock(&self.list).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Link>>)) {
        let mut list = lock(&self.list);
        change(Arc::make_mut(&mut list));
        self.any.store(!list.is_empty(), Ordering::Release);
        drop(list);
        self.look_again();
    }

    /// From now on messages go there, too. Those who have ended need not be told of them any more.
    fn add(&self, links: impl IntoIterator<Item = Arc<Link>>) {
        self.change(|list| {
            let before = list.len();
            list.extend(links);
            let mut n = 0;
            list.retain(|link| {
                n += 1;
                n > before || !link.leads_nowhere()
            });
        });
    }

    /// Makes a device that keeps links in its own memory write them anew.
    pub(crate) fn look_again(&self) {
        let changed = lock(&self.changed.0).clone();
        if let Some(changed) = changed {
            changed();
        }
    }

    /// Says what is to be called after a change, from now on.
    pub(crate) fn when_changed(&self, changed: Arc<dyn Fn() + Send + Sync>) {
        *lock(&self.changed.0) = Some(changed);
    }
}

/// A link, or a subscription. It stays when this is dropped; [`Self::cut`] ends it.
///
/// ```
/// # use millrace_resident::*;
/// # #[derive(Clone, Copy, Message)] #[repr(C)] struct Number { value: u32 }
/// # struct Double;
/// # impl Handler for Double {
/// #     type Message = Number; type Reply = Number; type State = ();
/// #     fn state(&self) {}
/// #     fn handle(&mut self, _: &mut (), n: &Number, _: &mut Scope<'_, Number>) -> Number { Number { value: n.value * 2 } }
/// # }
/// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
/// # let device = runtime.open("cpu")?;
/// # let soon = std::time::Instant::now() + std::time::Duration::from_secs(5);
/// let first = device.launch(Double, LaunchOptions::default())?;
/// let second = device.launch(Double, LaunchOptions::default())?;
/// let linked = first.link(&second);
/// first.send(Number { value: 10 })?;
/// assert_eq!(second.receive(soon)?.value, 40);
/// assert_eq!(linked.dropped(), 0);
/// linked.cut();
/// first.send(Number { value: 10 })?;
/// assert_eq!(first.receive(soon)?.value, 20);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Linked {
    link: Arc<Link>,
    from: Vec<Weak<Links>>,
    topic: Weak<Mutex<Members>>,
}

impl Linked {
    /// Messages that were dropped because there was no room (lossy), or because the receiver had ended. A sender forgets
    /// receivers that have ended when it is linked to another, and counts no more of those.
    pub fn dropped(&self) -> u64 {
        self.link.dropped.load(Ordering::Relaxed)
    }

    /// Ends it. What was sent before is still delivered.
    pub fn cut(&self) {
        let mut from = self.from.clone();
        if let Some(members) = self.topic.upgrade() {
            let mut members = lock(&members);
            members.subscribers.retain(|link| !Arc::ptr_eq(link, &self.link));
            from.extend(members.publishers.iter().cloned());
        }
        for links in from.iter().filter_map(Weak::upgrade) {
            links.change(|list| list.retain(|link| !Arc::ptr_eq(link, &self.link)));
        }
    }
}

#[derive(Debug, Default)]
struct Members {
    publishers: Vec<Weak<Links>>,
    subscribers: Vec<Arc<Link>>,
}

/// A name for messages of one type that some kernels publish and others subscribe to, in any order.
///
/// ```
/// # use millrace_resident::*;
/// # #[derive(Clone, Copy, Message)] #[repr(C)] struct Number { value: u32 }
/// # struct Double;
/// # impl Handler for Double {
/// #     type Message = Number; type Reply = Number; type State = ();
/// #     fn state(&self) {}
/// #     fn handle(&mut self, _: &mut (), n: &Number, _: &mut Scope<'_, Number>) -> Number { Number { value: n.value * 2 } }
/// # }
/// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
/// # let device = runtime.open("cpu")?;
/// # let soon = std::time::Instant::now() + std::time::Duration::from_secs(5);
/// # let launch = || device.launch(Double, LaunchOptions::default());
/// let (source, left, right) = (launch()?, launch()?, launch()?);
/// let topic = Topic::new();
/// topic.publish_from(&source);
/// topic.subscribe(&left, Delivery::Lossless);
/// let watched = topic.subscribe(&right, Delivery::Lossy);
/// source.send(Number { value: 1 })?;
/// assert_eq!((left.receive(soon)?.value, right.receive(soon)?.value), (4, 4));
/// assert_eq!(watched.dropped(), 0);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Topic<M> {
    members: Arc<Mutex<Members>>,
    messages: PhantomData<fn(M)>,
}

impl<M> Clone for Topic<M> {
    fn clone(&self) -> Self {
        Self { members: self.members.clone(), messages: PhantomData }
    }
}

impl<M: Carried> Default for Topic<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Carried> Topic<M> {
    /// A topic without anybody.
    pub fn new() -> Self {
        Self { members: Arc::default(), messages: PhantomData }
    }

    /// From now on the kernel's answers go to the subscribers.
    pub fn publish_from<K: Linkable<Gives = M>>(&self, kernel: &K) {
        let mut members = lock(&self.members);
        let links = &kernel.base().links;
        links.add(members.subscribers.iter().cloned());
        members.publishers.retain(|links| links.strong_count() > 0);
        members.publishers.push(Arc::downgrade(links));
    }

    /// From now on the kernel gets what is published. An archive that does not fit into a slot is made once, and all
    /// subscribers read that one.
    pub fn subscribe<K: Linkable>(&self, kernel: &K, delivery: Delivery) -> Linked
    where
        M: Becomes<K::Takes>,
    {
        let link = Link::new(&kernel.base().port, delivery, M::TRANSLATE);
        let mut members = lock(&self.members);
        members.subscribers.retain(|link| !link.leads_nowhere());
        members.subscribers.push(link.clone());
        for links in members.publishers.iter().filter_map(Weak::upgrade) {
            links.add([link.clone()]);
        }
        Linked { link, from: Vec::new(), topic: Arc::downgrade(&self.members) }
    }

    /// Publishes from the host.
    fn publish(&self, letter: &mut Letter) -> Result<()> {
        let subscribers = lock(&self.members).subscribers.clone();
        for link in subscribers {
            let Some(to) = link.to() else {
                link.add_dropped(1);
                continue;
            };
            letter.clock = to.clock.tick();
            let sent = if link.lossy {
                link.deliver(letter).map_err(|_| None)
            } else {
                to.send_blocking(None, || link.deliver(letter).map(|()| 0)).map(drop).map_err(Some)
            };
            match sent {
                Ok(()) => {}
                // One that ends, or has ended for good, is passed over like one that is gone.
                Err(Some(error)) if !matches!(error, Error::Ended(_) | Error::Failed(_)) || to.can_return() => {
                    return Err(error);
                }
                Err(_) => link.add_dropped(1),
            }
        }
        Ok(())
    }
}

impl<M: Message> Topic<M> {
    /// Publishes from the host: waits for room with lossless subscribers, and counts what lossy ones have no room for.
    ///
    /// Subscribers get it one after the other, in the order in which they came. If one that is lossless has no room for so
    /// long that this gives up, those before it have the message and it and those behind it have not: who sends again what
    /// came back with the error sends it to the first ones once more.
    pub fn send(&self, message: M) -> Result<(), Refused<M>> {
        let (bytes, clock) = (message.as_bytes().to_vec(), crate::Moment::default());
        let mut letter = Letter { kind: M::TYPE, clock, bytes, attachment: None };
        self.publish(&mut letter).map_err(|error| Refused { message, error })
    }
}

impl<M: Archivable> Topic<Archive<M>> {
    /// Publishes from the host, as with plain messages; after an error the first subscribers may have it, too. The archive is
    /// made once.
    ///
    /// ```
    /// # use millrace_resident::*;
    /// # struct Longest;
    /// # impl ArchivedHandler for Longest {
    /// #     type Message = Vec<String>; type Reply = String; type State = ();
    /// #     fn state(&self) {}
    /// #     fn handle(&mut self, _: &mut (), words: &rkyv::Archived<Vec<String>>, _: &mut Scope<'_, String>) -> String {
    /// #         words.iter().max_by_key(|word| word.len()).map(|word| word.to_string()).unwrap_or_default()
    /// #     }
    /// # }
    /// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
    /// # let device = runtime.open("cpu")?;
    /// # let soon = std::time::Instant::now() + std::time::Duration::from_secs(5);
    /// let launch = || device.launch_archived(Longest, LaunchOptions::default());
    /// let (left, right) = (launch()?, launch()?);
    /// let topic = Topic::<Archive<Vec<String>>>::new();
    /// topic.subscribe(&left, Delivery::Lossless);
    /// topic.subscribe(&right, Delivery::Lossless);
    /// topic.send(&vec!["mill".into(), "race".into(), "wheel".into()])?;
    /// assert_eq!(*left.receive(soon)?, "wheel");
    /// assert_eq!(*right.receive(soon)?, "wheel");
    /// # Ok::<(), Error>(())
    /// ```
    pub fn send(&self, message: &M) -> Result<()> {
        let attachment = Some(Attachment::Archive(Archive::new(message)?.into_shared()));
        let (kind, clock) = (crate::archive::kind_of::<M>(), crate::Moment::default());
        self.publish(&mut Letter { kind, clock, bytes: Vec::new(), attachment })
    }
}

/// Links a kernel's answers to another.
fn link<K: Linkable>(from: &Arc<Links>, to: &K, delivery: Delivery, translate: Option<Translate>) -> Linked {
    let link = Link::new(&to.base().port, delivery, translate);
    from.add([link.clone()]);
    Linked { link, from: vec![Arc::downgrade(from)], topic: Weak::new() }
}

impl<H: Handler> Resident<H> {
    /// From now on this kernel's answers, except to those who ask, go to another kernel: straight into its inbound ring.
    /// If it has no room, this one waits. The other may take [archives](crate::ArchivedHandler) of them.
    pub fn link<K: Linkable>(&self, to: &K) -> Linked
    where
        H::Reply: Becomes<K::Takes>,
    {
        self.link_with(to, Delivery::Lossless)
    }

    /// [`Self::link`], with a choice of what happens when there is no room.
    pub fn link_with<K: Linkable>(&self, to: &K, delivery: Delivery) -> Linked
    where
        H::Reply: Becomes<K::Takes>,
    {
        link(self.links(), to, delivery, <H::Reply as crate::carry::sealed::Becomes<K::Takes>>::TRANSLATE)
    }
}

impl<H: ArchivedHandler> ArchivedResident<H> {
    /// From now on this kernel's answers, except to those who ask, go to another kernel: straight into its inbound ring,
    /// or, those that do not fit, by handle. If it has no room, this one waits.
    ///
    /// ```
    /// # use millrace_resident::*;
    /// # struct Reverse;
    /// # impl ArchivedHandler for Reverse {
    /// #     type Message = String; type Reply = String; type State = ();
    /// #     fn state(&self) {}
    /// #     fn handle(&mut self, _: &mut (), text: &rkyv::Archived<String>, _: &mut Scope<'_, String>) -> String {
    /// #         text.chars().rev().collect()
    /// #     }
    /// # }
    /// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
    /// # let device = runtime.open("cpu")?;
    /// # let soon = std::time::Instant::now() + std::time::Duration::from_secs(5);
    /// let first = device.launch_archived(Reverse, LaunchOptions::default())?;
    /// let second = device.launch_archived(Reverse, LaunchOptions::default())?;
    /// first.link(&second);
    /// first.send(&"millrace".into())?;
    /// assert_eq!(*second.receive(soon)?, "millrace");
    /// # Ok::<(), Error>(())
    /// ```
    pub fn link<K: Linkable>(&self, to: &K) -> Linked
    where
        Archive<H::Reply>: Becomes<K::Takes>,
    {
        self.link_with(to, Delivery::Lossless)
    }

    /// [`Self::link`], with a choice of what happens when there is no room.
    pub fn link_with<K: Linkable>(&self, to: &K, delivery: Delivery) -> Linked
    where
        Archive<H::Reply>: Becomes<K::Takes>,
    {
        let translate = <Archive<H::Reply> as crate::carry::sealed::Becomes<K::Takes>>::TRANSLATE;
        link(&self.base.links, to, delivery, translate)
    }
}
