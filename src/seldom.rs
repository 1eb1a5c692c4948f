//! What most have nothing of: in a box that is there only once something is.

/// A `T` that is its default, and takes no room, until it is first changed.
#[derive(Debug)]
pub(crate) struct Seldom<T>(Option<Box<T>>);

impl<T> Seldom<T> {
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// To be changed.
    pub(crate) fn make(&mut self) -> &mut T
    where
        T: Default,
    {
        self.0.get_or_insert_default()
    }

    /// What there was.
    pub(crate) fn take(&mut self) -> Option<T> {
        self.0.take().map(|it| *it)
    }
}

impl<T> Default for Seldom<T> {
    fn default() -> Self {
        Self(None)
    }
}
