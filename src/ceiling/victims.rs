//! Who goes: the coldest of those that are idle, and the busy ones that yield.

use super::{
    holders::{Class, Id},
    state::{Out, State},
};
use crate::{
    sync::Arc,
    usage::{Eviction, Look},
};

impl State {
    /// Over the limit, whatever is idle goes.
    pub(super) fn trim(&mut self, out: &mut Out) {
        for class in [Class::Idle, Class::Fresh] {
            let mut after = None;
            while self.missing(0) > 0 {
                let Some((key, id)) = self.holders.next(class, after) else {
                    break;
                };
                after = Some((key, id));
                while let Some(look) = self.check(id) {
                    if self.close(id, look, Eviction::Over, None, out) {
                        break;
                    }
                }
            }
        }
    }

    /// Closes as many idle ones, coldest first, as bring room for `need`, a start of `whom`'s, or none. True if that much
    /// room is there or on its way.
    pub(super) fn make_room(
        &mut self,
        need: u64,
        own: Option<u64>,
        whom: Option<&Arc<str>>,
        out: &mut Out,
    ) -> bool {
        loop {
            let missing = self.missing(need);
            if missing == 0 {
                return true;
            }
            let Some(chosen) = self.choose(missing, own) else {
                // What was found closed on the way is room as well.
                if self.missing(need) == missing {
                    return false;
                }
                continue;
            };
            for (id, look) in chosen {
                // If somebody claimed it meanwhile, the next round finds it busy.
                self.close(id, look, Eviction::Room, whom, out);
            }
        }
    }

    /// The coldest idle ones that weigh at least `missing` together, none of them needless.
    fn choose(&mut self, missing: u64, own: Option<u64>) -> Option<Vec<(Id, Look)>> {
        let mut chosen: Vec<(Id, Look, u64)> = Vec::new();
        let mut sum: u64 = 0;
        let mut after = None;
        while sum < missing {
            if self.holders.weight(Class::Idle) < missing {
                return None;
            }
            let (key, id) = self.holders.next(Class::Idle, after)?;
            after = Some((key, id));
            let holder = self.holders.get(id)?;
            let weight = holder.weight;
            if own.is_some() && holder.start == own {
                continue;
            }
            if let Some(look) = self.check(id) {
                sum = sum.saturating_add(weight);
                chosen.push((id, look, weight));
            }
        }
        // The last one is needed; of the others the warmest may not be.
        for index in (0..chosen.len().saturating_sub(1)).rev() {
            let weight = chosen[index].2;
            if sum - weight >= missing {
                sum -= weight;
                chosen.remove(index);
            }
        }
        Some(chosen.into_iter().map(|(id, look, _)| (id, look)).collect())
    }

    /// Looks at one that is filed as idle. If it is not, or if it is warmer than filed, it is filed anew.
    fn check(&mut self, id: Id) -> Option<Look> {
        let usage = self.holders.get(id)?.usage.as_ref()?;
        let mut look = usage.look();
        if !look.is_idle() || look.is_born() {
            look = usage.want();
        }
        let class = if look.is_closed() {
            Class::Leaving
        } else if look.is_pinned() {
            Class::Pinned
        } else if !look.is_idle() || look.is_born() {
            Class::Busy
        } else if self.holders.moved(id) {
            return None;
        } else {
            return Some(look);
        };
        self.holders.set_class(id, class);
        None
    }

    /// Closes one that is as it was seen. False if it is not any more.
    fn close(
        &mut self,
        id: Id,
        seen: Look,
        why: Eviction,
        whom: Option<&Arc<str>>,
        out: &mut Out,
    ) -> bool {
        let usage = self.holders.get(id).and_then(|it| it.usage.as_ref());
        let telling = usage.and_then(|usage| usage.start_closing_for(seen, why, whom.cloned()));
        let closed = telling.is_some();
        if closed {
            self.holders.set_class(id, Class::Leaving);
        }
        out.telling.extend(telling);
        closed
    }

    /// Files one whose use is not known.
    pub(super) fn file(&mut self, id: Id, now: u64) {
        let Some(holder) = self.holders.get(id) else {
            return;
        };
        let Some(usage) = &holder.usage else { return };
        let look = usage.look();
        let class = if look.is_closed() {
            Class::Leaving
        } else if look.is_pinned() {
            Class::Pinned
        } else if holder.weight == 0 {
            Class::Uncounted
        } else if now < holder.fresh_until {
            Class::Fresh
        } else {
            Class::Idle
        };
        self.holders.set_class(id, class);
    }

    /// What busy ones could yield to a start that replaces `own`.
    pub(super) fn could_yield(&self, own: Option<u64>) -> u64 {
        let own = own.and_then(|own| self.holders.by_start(own));
        let own = own.map_or(0, |own| match own.class {
            Class::Busy | Class::Yielding => own.weight,
            _ => 0,
        });
        self.holders.weight(Class::Busy) + self.holders.weight(Class::Yielding) - own
    }

    /// Keeps as much yielding as is wanted: tells the coldest busy ones, but not `own`, and reopens what
    /// is too much. True if something was reopened: it may have fallen idle meanwhile.
    pub(super) fn yield_room(
        &mut self,
        wanted: u64,
        own: Option<u64>,
        whom: Option<&Arc<str>>,
        now: u64,
        out: &mut Out,
    ) -> bool {
        let mut after = None;
        while self.holders.weight(Class::Yielding) < wanted {
            let Some((key, id)) = self.holders.next(Class::Busy, after) else {
                break;
            };
            after = Some((key, id));
            let Some(holder) = self.holders.get(id) else {
                break;
            };
            if now < holder.fresh_until {
                let until = self.look_at.unwrap_or(u64::MAX);
                self.look_at = Some(until.min(holder.fresh_until));
                continue;
            }
            if (own.is_some() && holder.start == own) || self.holders.moved(id) {
                continue;
            }
            let holder = self.holders.get(id);
            let Some(usage) = holder.and_then(|holder| holder.usage.as_ref()) else {
                break;
            };
            usage.set_room_for(whom.cloned());
            if usage.start_yielding().is_yielding() {
                self.holders.set_class(id, Class::Yielding);
                self.yielding.push(id);
            }
            // Else it has just fallen idle or closed, and tells so.
        }
        let holders = &self.holders;
        self.yielding.retain(|id| {
            holders
                .get(*id)
                .is_some_and(|it| it.class == Class::Yielding)
        });
        let mut reopened = false;
        for index in (0..self.yielding.len()).rev() {
            let id = self.yielding[index];
            let weight = self.holders.get(id).map_or(0, |holder| holder.weight);
            if self.holders.weight(Class::Yielding) - weight >= wanted {
                self.yielding.remove(index);
                self.reopen(id, now, out);
                reopened = true;
            }
        }
        reopened
    }

    /// Takes the telling to yield back.
    pub(super) fn reopen(&mut self, id: Id, now: u64, out: &mut Out) {
        if let Some(usage) = self.holders.get(id).and_then(|it| it.usage.as_ref()) {
            out.telling.push(usage.stop_yielding());
            self.file(id, now);
        }
    }
}
