//! What every owner of sequences has been served, so that none is kept waiting by another's many.
//!
//! Virtual token counters (Sheng et al., arXiv 2401.00588): an owner's counter grows by the tokens it is
//! served, sampled ones twice, since each takes a step. The owner with the smallest counter is next. One that
//! comes back after a pause begins no lower than the others stand: what nobody asked for is not saved up.

/// What a sampled token counts, in tokens of a prompt.
const SAMPLED: u64 = 2;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Tenant {
    owner: u64,
    served: u64,
    /// Its sequences, waiting and running.
    sequences: usize,
}

/// Owners of sequences.
#[derive(Debug, Clone, Default)]
pub(super) struct Tenants {
    /// A place without sequences keeps what its owner was served ahead of the others.
    places: Vec<Tenant>,
}

impl Tenants {
    /// A sequence of an owner comes; the owner's place.
    pub(super) fn enter(&mut self, owner: u64) -> u32 {
        let least = self.active().map(|tenant| tenant.served).min();
        let known = self.places.iter().position(|tenant| tenant.owner == owner);
        // A place whose owner is not ahead of anybody says nothing any more.
        let spare = || {
            let idle =
                |tenant: &Tenant| tenant.sequences == 0 && least.is_none_or(|least| tenant.served <= least);
            self.places.iter().position(idle)
        };
        let new = Tenant { owner, served: 0, sequences: 0 };
        let place = match known.or_else(spare) {
            Some(place) => place,
            None => {
                self.places.push(new.clone());
                self.places.len() - 1
            }
        };
        let tenant = &mut self.places[place];
        if tenant.owner != owner {
            *tenant = new;
        }
        if tenant.sequences == 0 {
            // Alone, nobody is ahead of anybody.
            tenant.served = least.map_or(0, |least| tenant.served.max(least));
        }
        tenant.sequences += 1;
        place as u32
    }

    /// One of its sequences is gone.
    pub(super) fn leave(&mut self, place: u32) {
        if let Some(tenant) = self.places.get_mut(place as usize) {
            tenant.sequences = tenant.sequences.saturating_sub(1);
        }
    }

    fn active(&self) -> impl Iterator<Item = &Tenant> {
        self.places.iter().filter(|tenant| tenant.sequences > 0)
    }

    /// Tokens that a step reads for it.
    pub(super) fn reads(&mut self, place: u32, tokens: usize) {
        if let Some(tenant) = self.places.get_mut(place as usize) {
            tenant.served += tokens as u64;
        }
    }

    /// Tokens that a step samples for it.
    pub(super) fn samples(&mut self, place: u32, tokens: u64) {
        if let Some(tenant) = self.places.get_mut(place as usize) {
            tenant.served += SAMPLED * tokens;
        }
    }

    /// What it has been served.
    pub(super) fn served(&self, place: u32) -> u64 {
        self.places.get(place as usize).map_or(0, |tenant| tenant.served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_back_begins_where_the_others_stand_and_keeps_its_debt() {
        let mut tenants = Tenants::default();
        let (one, two) = (tenants.enter(1), tenants.enter(2));
        tenants.reads(one, 100);
        tenants.samples(two, 1);
        assert_eq!((tenants.served(one), tenants.served(two)), (100, 2));
        // A newcomer does not begin at zero: it would be alone until it had caught up.
        let three = tenants.enter(3);
        assert_eq!(tenants.served(three), 2);
        tenants.leave(one);
        tenants.reads(two, 10);
        tenants.reads(three, 30);
        assert_eq!(tenants.enter(1), one);
        assert_eq!(tenants.served(one), 100, "a pause is no way out of a debt");
        tenants.leave(two);
        tenants.reads(three, 40);
        assert_eq!((tenants.enter(2), tenants.served(two)), (two, 72), "nor is it saved up");
    }

    #[test]
    fn places_of_owners_that_are_gone_are_used_again() {
        let mut tenants = Tenants::default();
        let all = tenants.enter(0);
        for owner in 1..100 {
            let place = tenants.enter(owner);
            assert_eq!(tenants.served(place), tenants.served(all));
            tenants.leave(place);
            tenants.reads(all, 5);
        }
        assert!(tenants.places.len() <= 2, "{tenants:?}");
        tenants.leave(all);
        assert_eq!(tenants.enter(7), 0, "nobody is there: nobody is ahead");
        assert_eq!(tenants.served(0), 0);
    }
}
