use super::Owner;
use std::collections::BTreeMap;

/// Pages that are kept for tenants: what one does not use of its share, nobody else takes.
///
/// A tenant uses the pages that its sequences hold, each sequence counted with all of its own, also
/// those that it shares with others.
#[derive(Clone, Debug, Default)]
pub struct Reservations {
    /// By tenant, pages of each KV group.
    pages: BTreeMap<Owner, Vec<usize>>,
}

/// Pages in use, by tenant and KV group.
#[derive(Clone, Debug, Default)]
pub struct TenantUse<'a>(BTreeMap<&'a Owner, Vec<usize>>);

impl<'a> TenantUse<'a> {
    /// `tenant` uses so many pages more of each group.
    pub fn add(&mut self, tenant: &'a Owner, pages: impl IntoIterator<Item = usize>) {
        let used = self.0.entry(tenant).or_default();
        for (group, pages) in pages.into_iter().enumerate() {
            if used.len() <= group {
                used.push(0);
            }
            used[group] += pages;
        }
    }

    fn of(&self, tenant: &Owner, group: usize) -> usize {
        let used = self.0.get(tenant);
        used.and_then(|used| used.get(group)).copied().unwrap_or(0)
    }
}

impl Reservations {
    /// `shares`: tenants by X-Tenant-Id and the share of each, together no more than 1; `pages`: pages
    /// of each KV group.
    pub fn new<'a>(shares: impl IntoIterator<Item = (&'a str, f64)>, pages: &[usize]) -> Self {
        let of_groups = |share: f64| -> Vec<usize> {
            let of_group = |&pages: &usize| (pages as f64 * share) as usize;
            pages.iter().map(of_group).collect()
        };
        let shares = shares.into_iter();
        Self {
            pages: shares
                .map(|(tenant, share)| (Owner::Tenant(tenant.into()), of_groups(share)))
                .collect(),
        }
    }

    /// Whether pages are kept for `tenant`.
    pub fn has(&self, tenant: &Owner) -> bool {
        self.pages.contains_key(tenant)
    }

    /// Pages of `group` that are kept for others than `tenant`.
    pub fn kept_from(&self, tenant: &Owner, group: usize, used: &TenantUse<'_>) -> usize {
        let others = self.pages.iter().filter(|(other, _)| *other != tenant);
        others
            .map(|(other, kept)| kept[group].saturating_sub(used.of(other, group)))
            .sum()
    }

    /// Pages of each of `groups` groups that sequences of `tenant` could have if nobody else had any,
    /// of `pages`.
    pub fn pages_for(&self, tenant: &Owner, pages: &[usize]) -> Vec<usize> {
        let none = TenantUse::default();
        let groups = pages.iter().enumerate();
        groups
            .map(|(group, &pages)| pages - self.kept_from(tenant, group, &none).min(pages))
            .collect()
    }

    /// Whether `tenant` has a share and uses no more than that of any group.
    pub fn is_within(&self, tenant: &Owner, used: &TenantUse<'_>) -> bool {
        self.pages.get(tenant).is_some_and(|kept| {
            let mut groups = kept.iter().enumerate();
            groups.all(|(group, &kept)| used.of(tenant, group) <= kept)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tenant_does_not_use_is_kept_from_others_only() {
        let kept = Reservations::new([("a", 0.25), ("b", 0.5)], &[100, 10]);
        let [a, b, other] = ["a", "b", "c"].map(|name| Owner::Tenant(name.into()));
        assert_eq!(kept.pages_for(&a, &[100, 10]), [50, 5]);
        assert_eq!(kept.pages_for(&b, &[100, 10]), [75, 8]);
        assert_eq!(kept.pages_for(&other, &[100, 10]), [25, 3]);
        let session = Owner::Session("a".into());
        assert_eq!(
            kept.pages_for(&session, &[100, 10]),
            [25, 3],
            "a session of that name"
        );
        let mut used = TenantUse::default();
        used.add(&a, [20, 2]);
        used.add(&other, [20, 3]);
        assert_eq!(kept.kept_from(&other, 0, &used), 5 + 50);
        assert!(kept.is_within(&a, &used) && !kept.is_within(&other, &used));
        used.add(&a, [6, 0]);
        assert_eq!(kept.kept_from(&other, 0, &used), 50);
        assert!(!kept.is_within(&a, &used));
    }
}
