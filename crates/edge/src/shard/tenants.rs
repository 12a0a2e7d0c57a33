//! On whose account cells run: what the operator grants each tenant, and what it has.

use super::Shard;
use crate::{
    api::{App, Grant, Place},
    turns::{Class, Tenant, WEIGHT},
};
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use marram_wire::id::SessionId;

/// All tenants that a shard has heard of. Named once, never forgotten: there are never more than apps were deployed.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    by_name: BTreeMap<String, Tenant>,
    accounts: Vec<Account>,
}

#[derive(Debug)]
struct Account {
    weight: u32,
    sessions_max: usize,
    priority: bool,
    sessions: usize,
}

impl Default for Account {
    fn default() -> Self {
        Self { weight: WEIGHT, sessions_max: 0, priority: true, sessions: 0 }
    }
}

impl Tenants {
    fn name(&mut self, tenant: &str) -> Tenant {
        if let Some(known) = self.by_name.get(tenant) {
            return *known;
        }
        let new = Tenant(u32::try_from(self.accounts.len()).unwrap_or(u32::MAX));
        self.accounts.push(Account::default());
        self.by_name.insert(tenant.into(), new);
        new
    }

    fn account(&mut self, tenant: Tenant) -> Option<&mut Account> {
        self.accounts.get_mut(tenant.0 as usize)
    }

    /// The operator's grants, all of them; sessions that run are not touched.
    pub(super) fn grant(&mut self, grants: &[Grant]) {
        for account in &mut self.accounts {
            *account = Account { sessions: account.sessions, ..Account::default() };
        }
        for grant in grants {
            let tenant = self.name(&grant.tenant);
            if let Some(account) = self.account(tenant) {
                account.weight = grant.weight.max(1);
                account.sessions_max = grant.sessions_max as usize;
                account.priority = grant.priority;
            }
        }
    }

    /// Where cells of this app queue.
    pub(super) fn place(&mut self, app: &App) -> Place {
        let tenant = self.name(&app.tenant);
        let account = self.accounts.get(tenant.0 as usize);
        let urgent = app.priority > 0 && account.is_none_or(|account| account.priority);
        let class = if urgent { Class::Priority(app.priority) } else { Class::Fair };
        Place { tenant, weight: account.map_or(WEIGHT, |account| account.weight), class }
    }

    /// Whether one more session is within what the tenant is granted.
    pub(super) fn have_room(&self, tenant: &str) -> bool {
        let account = self.by_name.get(tenant).and_then(|tenant| self.accounts.get(tenant.0 as usize));
        account.is_none_or(|account| account.sessions_max == 0 || account.sessions < account.sessions_max)
    }

    /// A session begins.
    pub(super) fn came(&mut self, place: Place) {
        if let Some(account) = self.account(place.tenant) {
            account.sessions += 1;
        }
    }

    /// A session is over.
    pub(super) fn went(&mut self, place: Place) {
        if let Some(account) = self.account(place.tenant) {
            account.sessions -= 1;
        }
    }
}

impl Shard {
    /// Where the cell of a session queues.
    pub(super) fn place_of(&self, id: SessionId) -> Place {
        let nobody = Place { tenant: Tenant::default(), weight: WEIGHT, class: Class::Fair };
        self.sessions.get(&id).map_or(nobody, |session| session.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(tenant: &str, sessions_max: u32, priority: bool) -> Grant {
        Grant { tenant: tenant.into(), weight: 300, sessions_max, priority }
    }

    fn app(tenant: &str, priority: u8) -> App {
        crate::api::tests::app(tenant, priority)
    }

    #[test]
    fn a_tenant_s_apps_share_what_it_is_granted() {
        let mut tenants = Tenants::default();
        tenants.grant(&[grant("acme", 2, true)]);
        let places = [tenants.place(&app("acme", 0)), tenants.place(&app("acme", 3))];
        assert_eq!(places[0].tenant, places[1].tenant);
        assert_eq!((places[0].weight, places[1].class), (300, Class::Priority(3)));
        places.iter().for_each(|place| tenants.came(*place));
        assert!(!tenants.have_room("acme"));
        assert!(tenants.have_room("other"), "nobody has said anything of it");
        tenants.went(places[0]);
        assert!(tenants.have_room("acme"));
    }

    #[test]
    fn a_priority_that_is_not_granted_is_none_and_grants_can_change() {
        let mut tenants = Tenants::default();
        tenants.grant(&[grant("acme", 1, false)]);
        let place = tenants.place(&app("acme", 9));
        assert_eq!(place.class, Class::Fair);
        tenants.came(place);
        tenants.grant(&[]);
        assert!(tenants.have_room("acme"));
        assert_eq!(tenants.place(&app("acme", 9)).class, Class::Priority(9));
        tenants.went(place);
    }
}
