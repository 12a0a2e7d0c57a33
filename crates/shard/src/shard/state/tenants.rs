//! Tenants: what the operator grants each, how many sessions its apps may have, and how many they have.

use crate::{
    api::{App, Counter, Grant, Label, SchedulingParams},
    run_queue::{Class, Tenant, WEIGHT},
};
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use marram_session::{holds, invariant::BrokenInvariant};

/// All tenants that a shard knows. They are never removed: there are never more than deployed apps.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    by_name: BTreeMap<String, Tenant>,
    accounts: Vec<Account>,
    by_app: BTreeMap<String, Sessions>,
}

#[derive(Debug)]
struct Account {
    name: String,
    weight: u32,
    sessions_max: usize,
    priority: bool,
    sessions: Sessions,
}

impl Account {
    fn new(name: &str) -> Self {
        let (weight, sessions) = (WEIGHT, Sessions::default());
        Self { name: name.into(), weight, sessions_max: 0, priority: true, sessions }
    }
}

/// The sessions of one app or tenant.
#[derive(Clone, Copy, Default, Debug)]
struct Sessions {
    now: usize,
    /// Sessions that were refused because of the limit.
    refused: u64,
}

impl Sessions {
    /// Whether one more is within the limit; 0 is no limit.
    fn have_room(&mut self, limit: usize) -> bool {
        let room = limit == 0 || self.now < limit;
        self.refused += u64::from(!room);
        room
    }

    fn count(&self, kind: &str, label: &Label, out: &mut Vec<Counter>) {
        let name = |what: &str| alloc::format!("{kind}_sessions{what}");
        out.push(Counter::gauge(&name(""), self.now).of(label.clone()));
        out.push(Counter::count(&name("_refused_total"), self.refused).of(label.clone()));
    }
}

impl Tenants {
    fn name(&mut self, tenant: &str) -> Tenant {
        if let Some(known) = self.by_name.get(tenant) {
            return *known;
        }
        let new = Tenant(u32::try_from(self.accounts.len()).unwrap_or(u32::MAX));
        self.accounts.push(Account::new(tenant));
        self.by_name.insert(tenant.into(), new);
        new
    }

    fn account(&mut self, tenant: Tenant) -> Option<&mut Account> {
        self.accounts.get_mut(tenant.0 as usize)
    }

    /// Replaces all of the operator's grants; running sessions are not affected.
    pub(crate) fn grant(&mut self, grants: &[Grant]) {
        for account in &mut self.accounts {
            *account = Account { sessions: account.sessions, ..Account::new(&account.name) };
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

    /// How cells of this app are scheduled.
    pub(crate) fn place(&mut self, app: &App) -> SchedulingParams {
        let tenant = self.name(&app.tenant);
        let account = self.accounts.get(tenant.0 as usize);
        let urgent = app.priority > 0 && account.is_none_or(|account| account.priority);
        let class = if urgent { Class::Priority(app.priority) } else { Class::Fair };
        SchedulingParams { tenant, weight: account.map_or(WEIGHT, |account| account.weight), class }
    }

    /// An app is known here: it is counted from now on, even without sessions.
    pub(crate) fn know(&mut self, app: &App) {
        self.name(&app.tenant);
        self.by_app.entry(app.name.clone()).or_default();
    }

    /// Whether the limits of the app and its tenant allow one more session, or else the reason. Asked only for new
    /// sessions: a session that was admitted on any edge may continue here when its edge dies.
    pub(crate) fn have_room(&mut self, app: &App) -> Result<(), String> {
        let sessions = self.by_app.entry(app.name.clone()).or_default();
        if !sessions.have_room(app.sessions_max as usize) {
            return Err(alloc::format!(
                "the app `{}` has reached its maximum number of sessions on this shard (quotas.sessions = {})",
                app.name,
                app.sessions_max
            ));
        }
        let tenant = self.name(&app.tenant);
        let Some(account) = self.account(tenant) else { return Ok(()) };
        if !account.sessions.have_room(account.sessions_max) {
            return Err(alloc::format!(
                "the tenant `{}` has reached its maximum number of sessions on this shard (tenant.sessions = {})",
                app.tenant,
                account.sessions_max
            ));
        }
        Ok(())
    }

    /// A session of an app begins.
    pub(crate) fn came(&mut self, place: SchedulingParams, app: &str) {
        self.by_app.entry(app.into()).or_default().now += 1;
        if let Some(account) = self.account(place.tenant) {
            account.sessions.now += 1;
        }
    }

    /// A session of an app is over.
    pub(crate) fn went(&mut self, place: SchedulingParams, app: &str) {
        if let Some(sessions) = self.by_app.get_mut(app) {
            sessions.now -= 1;
        }
        if let Some(account) = self.account(place.tenant) {
            account.sessions.now -= 1;
        }
    }

    /// Checks I39 of docs/protocol.md, as far as it concerns tenants. `counted` has the tenant and the app of each
    /// session that was counted with [`Tenants::came`].
    pub(crate) fn invariants<'a>(
        &self,
        counted: impl Iterator<Item = (SchedulingParams, &'a str)>,
    ) -> Result<(), BrokenInvariant> {
        let mut by_tenant = alloc::vec![0; self.accounts.len()];
        let mut by_app: BTreeMap<&str, usize> = BTreeMap::new();
        for (place, app) in counted {
            let sessions = by_tenant.get_mut(place.tenant.0 as usize);
            holds!("I39", sessions.is_some());
            sessions.into_iter().for_each(|sessions| *sessions += 1);
            *by_app.entry(app).or_default() += 1;
        }
        holds!("I39", self.accounts.iter().map(|account| account.sessions.now).eq(by_tenant));
        let apps = self.by_app.iter().filter(|(_, sessions)| sessions.now > 0);
        holds!("I39", apps.map(|(app, sessions)| (app.as_str(), sessions.now)).eq(by_app));
        // A tenant's number is its place in the accounts, so that executors name it by a small number.
        holds!("I39", self.by_name.len() == self.accounts.len());
        for (name, tenant) in &self.by_name {
            let account = self.accounts.get(tenant.0 as usize);
            holds!("I39", account.is_some_and(|account| account.name == *name));
        }
        Ok(())
    }

    /// The counters of each app and tenant.
    pub(crate) fn count(&self, out: &mut Vec<Counter>) {
        for (app, sessions) in &self.by_app {
            sessions.count("app", &Label::app(app), out);
        }
        for account in &self.accounts {
            account.sessions.count("tenant", &Label::tenant(&account.name), out);
        }
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

    /// An app that may have this many sessions.
    fn limited(name: &str, tenant: &str, sessions_max: u32) -> App {
        App { name: name.into(), sessions_max, ..app(tenant, 0) }
    }

    #[test]
    fn a_tenant_s_apps_share_what_it_is_granted() {
        let mut tenants = Tenants::default();
        tenants.grant(&[grant("acme", 2, true)]);
        let (web, mail) = (limited("web", "acme", 0), App { priority: 3, ..limited("mail", "acme", 0) });
        let places = [tenants.place(&web), tenants.place(&mail)];
        assert_eq!(places[0].tenant, places[1].tenant);
        assert_eq!((places[0].weight, places[1].class), (300, Class::Priority(3)));
        tenants.came(places[0], "web");
        tenants.came(places[1], "mail");
        let why = tenants.have_room(&web).unwrap_err();
        assert!(why.contains("`acme`") && why.contains("tenant.sessions = 2"), "{why}");
        assert_eq!(tenants.have_room(&app("other", 0)), Ok(()), "no one has said anything of it");
        tenants.went(places[1], "mail");
        assert_eq!(tenants.have_room(&web), Ok(()));
    }

    #[test]
    fn an_app_has_as_many_sessions_as_its_manifest_allows_over_all_its_versions() {
        let mut tenants = Tenants::default();
        let old = limited("web", "acme", 2);
        let new = App { image: marram_wire::id::ImageHash([2; 32]), ..old.clone() };
        let place = tenants.place(&old);
        tenants.came(place, "web");
        assert_eq!(tenants.have_room(&new), Ok(()));
        tenants.came(place, "web");
        let why = tenants.have_room(&new).unwrap_err();
        assert!(why.contains("`web`") && why.contains("quotas.sessions = 2"), "{why}");
        assert_eq!(tenants.have_room(&limited("mail", "acme", 2)), Ok(()), "another app of the tenant");
        assert_eq!(tenants.have_room(&limited("web", "acme", 3)), Ok(()), "deployed again with more");
        let mut counters = Vec::new();
        tenants.count(&mut counters);
        let web = |name: &str| {
            let of = |counter: &&Counter| counter.name == name && counter.label == Some(Label::app("web"));
            counters.iter().find(of).map(|counter| counter.value)
        };
        assert_eq!((web("app_sessions"), web("app_sessions_refused_total")), (Some(2), Some(1)));
    }

    #[test]
    fn a_priority_that_is_not_granted_is_none_and_grants_can_change() {
        let mut tenants = Tenants::default();
        tenants.grant(&[grant("acme", 1, false)]);
        let app = app("acme", 9);
        let place = tenants.place(&app);
        assert_eq!(place.class, Class::Fair);
        tenants.came(place, &app.name);
        tenants.grant(&[]);
        assert_eq!(tenants.have_room(&app), Ok(()));
        assert_eq!(tenants.place(&app).class, Class::Priority(9));
        tenants.went(place, &app.name);
    }
}
