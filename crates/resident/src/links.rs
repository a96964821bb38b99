//! Links from kernel to kernel, without the host in between, and topics on top of them.
//!
//! A linked kernel writes its answers straight into the other's inbound ring.

use std::{
    marker::PhantomData,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::{
    Handler, Message, Refused, Resident, Result,
    port::{Head, Outgoing, Port, lock},
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
    pub(crate) to: Arc<Port>,
    pub(crate) lossy: bool,
    pub(crate) high: bool,
    dropped: AtomicU64,
}

impl Link {
    fn new(to: Arc<Port>, delivery: Delivery) -> Arc<Self> {
        Arc::new(Self { to, lossy: delivery == Delivery::Lossy, high: false, dropped: AtomicU64::new(0) })
    }

    pub(crate) fn count_dropped(&self) {
        self.add_dropped(1);
    }

    pub(crate) fn add_dropped(&self, messages: u64) {
        self.dropped.fetch_add(messages, Ordering::Relaxed);
    }
}

/// Where a kernel's answers go instead of to the host.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Links {
    /// Whether there are any, for the kernel, which looks at every message.
    any: AtomicBool,
    list: Mutex<Arc<Vec<Arc<Link>>>>,
    /// Called after a change, for a device that keeps links in its own memory.
    pub(crate) changed: Changed,
}

/// Something to be called, once it is known.
#[derive(Default)]
pub(crate) struct Changed(pub(crate) OnceLock<Box<dyn Fn() + Send + Sync>>);

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
        if let Some(changed) = self.changed.0.get() {
            changed();
        }
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
    /// Messages that were dropped because there was no room (lossy), or because the receiver had ended.
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

impl<M: Message> Default for Topic<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Message> Topic<M> {
    /// A topic without anybody.
    pub fn new() -> Self {
        Self { members: Arc::default(), messages: PhantomData }
    }

    /// From now on the kernel's answers go to the subscribers.
    pub fn publish_from<H: Handler<Reply = M>>(&self, kernel: &Resident<H>) {
        let mut members = lock(&self.members);
        let links = kernel.links();
        links.change(|list| list.extend(members.subscribers.iter().cloned()));
        members.publishers.retain(|links| links.strong_count() > 0);
        members.publishers.push(Arc::downgrade(links));
    }

    /// From now on the kernel gets what is published.
    pub fn subscribe<H: Handler<Message = M>>(&self, kernel: &Resident<H>, delivery: Delivery) -> Linked {
        let link = Link::new(kernel.port().clone(), delivery);
        let mut members = lock(&self.members);
        members.subscribers.push(link.clone());
        for links in members.publishers.iter().filter_map(Weak::upgrade) {
            links.change(|list| list.push(link.clone()));
        }
        Linked { link, from: Vec::new(), topic: Arc::downgrade(&self.members) }
    }

    /// Publishes from the host: waits for room with lossless subscribers, and counts what lossy ones have no room for.
    pub fn send(&self, message: M) -> Result<(), Refused<M>> {
        let subscribers = lock(&self.members).subscribers.clone();
        for link in subscribers {
            let (high, clock) = (link.high, link.to.clock.tick());
            let head = Head { high, kind: M::TYPE, flags: 0, clock, buffer: (0, 0) };
            let mut outgoing = Outgoing { head, bytes: message.as_bytes(), attachment: &mut None };
            if link.lossy || link.to.status().is_ended() {
                if link.to.inject(&mut outgoing).is_err() {
                    link.count_dropped();
                }
            } else {
                link.to.inject_blocking(&mut outgoing, None).map_err(|error| Refused { message, error })?;
            }
        }
        Ok(())
    }
}

impl<H: Handler> Resident<H> {
    /// From now on this kernel's answers, except to those who ask, go to another kernel: straight into its inbound ring.
    /// If it has no room, this one waits.
    pub fn link<T: Handler<Message = H::Reply>>(&self, to: &Resident<T>) -> Linked {
        self.link_with(to, Delivery::Lossless)
    }

    /// [`Self::link`], with a choice of what happens when there is no room.
    pub fn link_with<T: Handler<Message = H::Reply>>(&self, to: &Resident<T>, delivery: Delivery) -> Linked {
        let link = Link::new(to.port().clone(), delivery);
        self.links().change(|list| list.push(link.clone()));
        Linked { link, from: vec![Arc::downgrade(self.links())], topic: Weak::new() }
    }
}
