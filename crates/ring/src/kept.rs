//! Shared objects that are kept when the last handle goes, for somebody to use again.

use std::{mem::ManuallyDrop, ops::Deref, sync::Arc};

use crate::BriefGuard;

/// What can be kept.
///
/// [`Kept`] shows one.
pub trait Keep {
    /// Called instead of dropping the last handle, or what is believed to be the last.
    fn keep(last: Arc<Self>);
}

/// A handle of something that is kept.
///
/// ```
/// use std::sync::Arc;
/// use millrace_ring::{BriefLock, Keep, Kept, put_behind};
/// struct Item {
///     home: Arc<BriefLock<Option<Arc<Item>>>>,
/// }
/// impl Keep for Item {
///     fn keep(last: Arc<Self>) {
///         put_behind(last, |item| Some(item.home.lock()), |place, _| Some(place));
///     }
/// }
/// let home = Arc::new(BriefLock::new(None));
/// let handle = Kept::new(Arc::new(Item { home: home.clone() }));
/// let other = handle.clone();
/// drop(handle);
/// assert!(home.lock().is_none() && Arc::ptr_eq(&other.home, &home));
/// drop(other);
/// assert!(home.lock().take().is_some(), "it was put there");
/// ```
#[derive(Debug)]
pub struct Kept<T: Keep>(ManuallyDrop<Arc<T>>);

impl<T: Keep> Kept<T> {
    /// A handle of it.
    #[inline(always)]
    pub fn new(inner: Arc<T>) -> Self {
        Self(ManuallyDrop::new(inner))
    }
}

impl<T: Keep> Clone for Kept<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Keep> Deref for Kept<T> {
    type Target = Arc<T>;

    #[inline(always)]
    fn deref(&self) -> &Arc<T> {
        &self.0
    }
}

impl<T: Keep> Drop for Kept<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: it is taken once, and not used again.
        let inner = unsafe { ManuallyDrop::take(&mut self.0) };
        if Arc::strong_count(&inner) == 1 {
            T::keep(inner);
        }
    }
}

/// Puts `item` into a place behind a lock that it leads to itself, and so keeps alive. `lock` takes the lock, or does not;
/// `place` says where to, or nowhere. What was in that place comes back, or the item if it is put nowhere; the lock is
/// free then.
///
/// ```
/// use std::sync::Arc;
/// use millrace_ring::{BriefLock, put_behind};
/// struct Item {
///     home: Arc<BriefLock<Option<Arc<Item>>>>,
/// }
/// let home = Arc::new(BriefLock::new(None));
/// let item = Arc::new(Item { home: home.clone() });
/// assert!(put_behind(item, |item| Some(item.home.lock()), |place, _| Some(place)).is_none());
/// let item = home.lock().take().expect("it is there");
/// assert!(put_behind(item, |item| Some(item.home.lock()), |_, _| None).is_some());
/// ```
#[inline(always)]
pub fn put_behind<T, S>(
    item: Arc<T>,
    lock: impl FnOnce(&T) -> Option<BriefGuard<'_, S>>,
    place: impl for<'s> FnOnce(&'s mut S, &Arc<T>) -> Option<&'s mut Option<Arc<T>>>,
) -> Option<Arc<T>> {
    // SAFETY: the item keeps the lock alive, and is dropped after the guard, also by a panic; unless it is in its place.
    // Then it is behind the lock, and nobody gets hold of it before the guard has done the last thing it does.
    let Some(mut guard) = lock(unsafe { &*Arc::as_ptr(&item) }) else { return Some(item) };
    match place(&mut guard, &item) {
        Some(place) => place.replace(item),
        None => {
            drop(guard);
            Some(item)
        }
    }
}
