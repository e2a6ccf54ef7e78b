//! Prefix index: the prompt prefixes that each replica likely has in its KV cache.
//!
//! An engine keeps the blocks of the prompts it has prefilled and evicts the least recently used
//! ones. The index mirrors this from outside. Each dispatch makes the prompt's blocks the
//! newest of the replica, and the oldest blocks beyond the replica's capacity are dropped. The
//! later blocks of a prompt count as older than the earlier ones, as in the engines. A replica
//! that holds a block therefore holds all blocks before it.
//!
//! That is a guess. What engines report as cached tells where it is wrong: see [`CacheRecord`].

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::model::ids::ReplicaId;
use crate::model::job::PromptPrefix;
use crate::model::number_map::NumberMap;
use crate::replica::affinity::cache_record::CacheRecord;

/// KV cache of a replica, in tokens, until it is known.
pub const DEFAULT_KV_TOKENS: u64 = 200_000;
/// Most blocks in the index over all replicas. They take about 100 MB, and are just fewer than
/// those for which the hash table would have to double again.
pub const MAX_BLOCKS: usize = 900_000;
/// Most holders that are kept for one block: the most recent ones.
pub const MAX_HOLDERS: u32 = 16;

/// Cached tokens of a prompt by replica: the most tokens first, then by replica.
pub type PrefixMatches = SmallVec<[(ReplicaId, u64); 8]>;

/// Prefix index of all replicas.
#[derive(Debug, Clone)]
pub struct PrefixIndex {
    bound: usize,
    blocks: Vec<CachedBlock>,
    unused: Vec<usize>,
    all: BlockList,
    replicas: BTreeMap<ReplicaId, ReplicaCache>,
    /// The hashes are keyed: no client can choose them.
    hashes: NumberMap<u64, BlockList>,
}

/// Block in the cache of a replica. Each block is a link of three lists: of all blocks, of the
/// replica's, and of those with the same hash.
#[derive(Debug, Clone, Copy)]
struct CachedBlock {
    hash: u64,
    replica: ReplicaId,
    tokens: u32,
    links: [BlockLink; 3],
}

#[derive(Debug, Clone, Copy)]
enum ListKind {
    All = 0,
    Replica = 1,
    Hash = 2,
}

#[derive(Debug, Clone, Copy, Default)]
struct BlockLink {
    newer: Option<u32>,
    older: Option<u32>,
}

/// Blocks in the order of their last use.
#[derive(Debug, Clone, Copy, Default)]
struct BlockList {
    newest: Option<u32>,
    oldest: Option<u32>,
    len: u32,
}

#[derive(Debug, Clone, Copy)]
struct ReplicaCache {
    capacity: u64,
    tokens: u64,
    chain: BlockList,
    record: CacheRecord,
}

impl Default for ReplicaCache {
    fn default() -> Self {
        Self {
            capacity: DEFAULT_KV_TOKENS,
            tokens: 0,
            chain: BlockList::default(),
            record: CacheRecord::default(),
        }
    }
}

impl Default for PrefixIndex {
    fn default() -> Self {
        Self::bounded(MAX_BLOCKS)
    }
}

impl PrefixIndex {
    /// Creates an empty index of at most this many blocks, 1 to 2³² − 1.
    pub fn bounded(blocks: usize) -> Self {
        Self {
            bound: blocks.clamp(1, u32::MAX as usize),
            blocks: Vec::new(),
            unused: Vec::new(),
            all: BlockList::default(),
            replicas: BTreeMap::new(),
            hashes: NumberMap::default(),
        }
    }

    /// Number of blocks in the index.
    pub const fn len(&self) -> usize {
        self.all.len as usize
    }

    /// Whether the index is empty.
    pub const fn is_empty(&self) -> bool {
        self.all.len == 0
    }

    /// Tokens that the replica likely has in its cache.
    pub fn cached_tokens(&self, replica: ReplicaId) -> u64 {
        self.replicas.get(&replica).map_or(0, |cache| cache.tokens)
    }

    /// For each replica that holds a prefix of the prompt, the tokens of the longest such prefix.
    ///
    /// The search is binary: first for the longest prefix that any replica holds, then for the next
    /// shorter one that another replica holds, and so on. Where more than [`MAX_HOLDERS`] replicas
    /// share a prefix, the least recent ones may be left out.
    pub fn matches(&self, prefix: &PromptPrefix) -> PrefixMatches {
        let mut found = PrefixMatches::new();
        if prefix.block_tokens == 0 {
            return found;
        }
        let mut rest = &prefix.blocks[..];
        let news = |hash: &u64, found: &PrefixMatches| self.holders(*hash).any(|id| !has(found, id));
        loop {
            let length = rest.partition_point(|hash| news(hash, &found));
            let Some((last, before)) = rest[..length].split_last() else { break };
            let tokens = (length as u64).saturating_mul(u64::from(prefix.block_tokens));
            for replica in self.holders(*last) {
                if !has(&found, replica) {
                    found.push((replica, tokens));
                }
            }
            rest = before;
        }
        found.retain(|(replica, _)| self.replicas.get(replica).is_none_or(|cache| cache.record.finds()));
        found.sort_unstable_by_key(|(replica, tokens)| (std::cmp::Reverse(*tokens), *replica));
        found
    }

    /// The most tokens of the prompt that any replica holds.
    pub fn longest_match(&self, prefix: &PromptPrefix) -> u64 {
        self.matches(prefix).first().map_or(0, |(_, tokens)| *tokens)
    }

    /// Notes that a job with this prompt was dispatched to the replica. Returns the tokens of the
    /// prompt that the index had for the replica.
    pub fn note(&mut self, replica: ReplicaId, prefix: &PromptPrefix) -> u64 {
        if prefix.block_tokens == 0 {
            return 0;
        }
        let predicted_cached = self.predicted_cached(replica, prefix);
        let cache = self.replicas.entry(replica).or_default();
        cache.record.expect(predicted_cached);
        let fitting = usize::try_from(cache.capacity / u64::from(prefix.block_tokens)).unwrap_or(usize::MAX);
        let kept = prefix.blocks.len().min(fitting).min(self.bound);
        for hash in prefix.blocks[..kept].iter().rev() {
            self.touch(replica, *hash, prefix.block_tokens);
            self.shrink(replica);
        }
        predicted_cached
    }

    /// Learns from an answer of the replica how many tokens of the prompt were cached. `predicted_cached`
    /// is what [`Self::note`] returned.
    pub fn learn(&mut self, replica: ReplicaId, predicted_cached: u64, cached: u64) {
        if let Some(cache) = self.replicas.get_mut(&replica) {
            cache.record.learn(predicted_cached, cached);
        }
    }

    /// Learns from the replica's own count of the prompt tokens that came from its cache.
    pub fn learn_count(&mut self, replica: ReplicaId, cached: u64) {
        self.replicas.entry(replica).or_default().record.learn_count(cached);
    }

    /// Whether the replica tells that it finds prompts in its cache.
    pub fn is_proven(&self, replica: ReplicaId) -> bool {
        self.replicas.get(&replica).is_some_and(|cache| cache.record.is_proven())
    }

    /// Tokens of the longest prefix of the prompt that the index has for the replica.
    fn predicted_cached(&self, replica: ReplicaId, prefix: &PromptPrefix) -> u64 {
        let length = prefix.blocks.partition_point(|hash| self.holders(*hash).any(|id| id == replica));
        (length as u64).saturating_mul(u64::from(prefix.block_tokens))
    }

    /// Sets the capacity of the replica's cache, in tokens; 0 means that the replica caches
    /// nothing.
    pub fn resize(&mut self, replica: ReplicaId, kv_tokens: u64) {
        self.replicas.entry(replica).or_default().capacity = kv_tokens;
        self.shrink(replica);
    }

    /// Empties the replica's cache after a restart. Its capacity is kept. The engine may have come
    /// back with other settings, so its record starts anew.
    pub fn forget(&mut self, replica: ReplicaId) {
        self.clear(replica);
        if let Some(cache) = self.replicas.get_mut(&replica) {
            cache.record = CacheRecord::default();
        }
    }

    /// Removes the replica and its capacity.
    pub fn remove(&mut self, replica: ReplicaId) {
        self.clear(replica);
        self.replicas.remove(&replica);
    }

    fn clear(&mut self, replica: ReplicaId) {
        while let Some(block) = self.oldest_of(replica) {
            self.drop_block(block);
        }
    }

    /// Replicas that hold the block, the most recent one first.
    fn holders(&self, hash: u64) -> impl Iterator<Item = ReplicaId> {
        self.entries(hash).map(|at| self.blocks[at as usize].replica)
    }

    fn entries(&self, hash: u64) -> impl Iterator<Item = u32> {
        let newest = self.hashes.get(&hash).and_then(|chain| chain.newest);
        std::iter::successors(newest, |at| self.blocks[*at as usize].links[ListKind::Hash as usize].older)
    }

    fn oldest_of(&self, replica: ReplicaId) -> Option<u32> {
        self.replicas.get(&replica)?.chain.oldest
    }

    /// Makes the block the newest one of the replica.
    fn touch(&mut self, replica: ReplicaId, hash: u64, tokens: u32) {
        let known = self.entries(hash).find(|at| self.blocks[*at as usize].replica == replica);
        if let Some(at) = known {
            self.renew(at, tokens);
            return;
        }
        if let Some(BlockList { oldest: Some(oldest), len: MAX_HOLDERS.., .. }) =
            self.hashes.get(&hash).copied()
        {
            self.drop_block(oldest);
        }
        let at = self.place();
        let block = CachedBlock { hash, replica, tokens, links: [BlockLink::default(); 3] };
        if at == self.blocks.len() {
            self.blocks.push(block);
        }
        self.blocks[at] = block;
        self.link(at as u32);
    }

    /// Moves a block to the new end of its lists.
    fn renew(&mut self, at: u32, tokens: u32) {
        let CachedBlock { hash, replica, tokens: before, .. } = self.blocks[at as usize];
        self.blocks[at as usize].tokens = tokens;
        self.all.renew(&mut self.blocks, ListKind::All, at);
        if let Some(cache) = self.replicas.get_mut(&replica) {
            cache.tokens = cache.tokens - u64::from(before) + u64::from(tokens);
            cache.chain.renew(&mut self.blocks, ListKind::Replica, at);
        }
        if let Some(chain) = self.hashes.get_mut(&hash) {
            chain.renew(&mut self.blocks, ListKind::Hash, at);
        }
    }

    /// Index for a new block; drops the oldest block when the index is full.
    fn place(&mut self) -> usize {
        if self.len() >= self.bound
            && let Some(oldest) = self.all.oldest
        {
            self.drop_block(oldest);
        }
        self.unused.pop().unwrap_or(self.blocks.len())
    }

    /// Drops the replica's oldest blocks until its cache fits its capacity.
    fn shrink(&mut self, replica: ReplicaId) {
        while self.replicas.get(&replica).is_some_and(|cache| cache.tokens > cache.capacity)
            && let Some(oldest) = self.oldest_of(replica)
        {
            self.drop_block(oldest);
        }
    }

    fn drop_block(&mut self, at: u32) {
        self.unlink(at);
        self.unused.push(at as usize);
    }

    /// Adds a block at the new end of its lists.
    fn link(&mut self, at: u32) {
        let CachedBlock { hash, replica, tokens, .. } = self.blocks[at as usize];
        let cache = self.replicas.entry(replica).or_default();
        cache.tokens += u64::from(tokens);
        self.all.push(&mut self.blocks, ListKind::All, at);
        cache.chain.push(&mut self.blocks, ListKind::Replica, at);
        self.hashes.entry(hash).or_default().push(&mut self.blocks, ListKind::Hash, at);
    }

    /// Removes a block from its lists.
    fn unlink(&mut self, at: u32) {
        let CachedBlock { hash, replica, tokens, .. } = self.blocks[at as usize];
        self.all.unlink(&mut self.blocks, ListKind::All, at);
        if let Some(cache) = self.replicas.get_mut(&replica) {
            cache.tokens -= u64::from(tokens);
            cache.chain.unlink(&mut self.blocks, ListKind::Replica, at);
        }
        if let Some(chain) = self.hashes.get_mut(&hash) {
            chain.unlink(&mut self.blocks, ListKind::Hash, at);
            if chain.len == 0 {
                self.hashes.remove(&hash);
            }
        }
    }
}

impl BlockList {
    fn push(&mut self, blocks: &mut [CachedBlock], along: ListKind, at: u32) {
        let way = along as usize;
        blocks[at as usize].links[way] = BlockLink { newer: None, older: self.newest };
        match self.newest {
            Some(before) => blocks[before as usize].links[way].newer = Some(at),
            None => self.oldest = Some(at),
        }
        self.newest = Some(at);
        self.len += 1;
    }

    fn renew(&mut self, blocks: &mut [CachedBlock], along: ListKind, at: u32) {
        self.unlink(blocks, along, at);
        self.push(blocks, along, at);
    }

    fn unlink(&mut self, blocks: &mut [CachedBlock], along: ListKind, at: u32) {
        let way = along as usize;
        let BlockLink { newer, older } = blocks[at as usize].links[way];
        match newer {
            Some(newer) => blocks[newer as usize].links[way].older = older,
            None => self.newest = older,
        }
        match older {
            Some(older) => blocks[older as usize].links[way].newer = newer,
            None => self.oldest = newer,
        }
        self.len -= 1;
    }
}

fn has(found: &PrefixMatches, replica: ReplicaId) -> bool {
    found.iter().any(|(id, _)| *id == replica)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    /// Every block of every replica, oldest first, in the plainest form.
    struct Naive {
        bound: usize,
        blocks: Vec<(ReplicaId, u64, u64)>,
        capacity: BTreeMap<ReplicaId, u64>,
    }

    impl Naive {
        fn capacity(&self, replica: ReplicaId) -> u64 {
            self.capacity.get(&replica).copied().unwrap_or(DEFAULT_KV_TOKENS)
        }

        fn held(&self, replica: ReplicaId) -> u64 {
            self.blocks.iter().filter(|(id, _, _)| *id == replica).map(|(_, _, tokens)| tokens).sum()
        }

        fn shrink(&mut self, replica: ReplicaId) {
            while self.held(replica) > self.capacity(replica) {
                let oldest = self.blocks.iter().position(|(id, _, _)| *id == replica).expect("a block");
                self.blocks.remove(oldest);
            }
        }

        fn note(&mut self, replica: ReplicaId, prefix: &PromptPrefix) {
            let each = u64::from(prefix.block_tokens);
            let kept = (self.capacity(replica) / each).min(self.bound as u64) as usize;
            for hash in prefix.blocks.iter().take(kept).rev() {
                self.blocks.retain(|(id, other, _)| (*id, *other) != (replica, *hash));
                if self.blocks.len() == self.bound {
                    self.blocks.remove(0);
                }
                self.blocks.push((replica, *hash, each));
                self.shrink(replica);
            }
        }

        fn holds(&self, replica: ReplicaId, hash: u64) -> bool {
            self.blocks.iter().any(|(id, other, _)| (*id, *other) == (replica, hash))
        }

        fn matches(&self, prefix: &PromptPrefix) -> BTreeSet<(ReplicaId, u64)> {
            let replicas: BTreeSet<_> = self.blocks.iter().map(|(id, _, _)| *id).collect();
            let run = |id| prefix.blocks.iter().take_while(|hash| self.holds(id, **hash)).count() as u64;
            let lengths = replicas.into_iter().map(|id| (id, run(id) * u64::from(prefix.block_tokens)));
            lengths.filter(|(_, tokens)| *tokens > 0).collect()
        }
    }

    #[derive(Debug, Clone)]
    enum Op {
        Note(u32, PromptPrefix),
        Resize(u32, u64),
        Forget(u32),
    }

    fn id(number: u32) -> ReplicaId {
        ReplicaId::new(number)
    }

    /// Hashes that cover what is before them, as those of the edge do.
    fn prompt(words: &[u8], block_tokens: u32) -> PromptPrefix {
        let blocks = words.iter().scan(7_u64, |hash, word| {
            *hash = hash.wrapping_mul(31).wrapping_add(u64::from(*word) + 1);
            Some(*hash)
        });
        PromptPrefix { blocks: blocks.collect(), block_tokens }
    }

    fn prompts() -> impl Strategy<Value = PromptPrefix> {
        (vec(0..3_u8, 0..12), 1..4_u32).prop_map(|(words, tokens)| prompt(&words, tokens * 8))
    }

    fn ops(replicas: u32) -> impl Strategy<Value = Vec<Op>> {
        let op =
            (0..10_u8, 0..replicas, 0..300_u64, prompts()).prop_map(
                |(kind, replica, kv, prefix)| match kind {
                    0 => Op::Forget(replica),
                    1 => Op::Resize(replica, kv),
                    _ => Op::Note(replica, prefix),
                },
            );
        vec(op, 0..60)
    }

    /// `bound` is that of the index; the plain model has another one where the two
    /// need not be equal.
    fn play(ops: &[Op], bound: usize, naive_bound: usize) -> (PrefixIndex, Naive) {
        let mut index = PrefixIndex::bounded(bound);
        let mut naive = Naive { bound: naive_bound, blocks: Vec::new(), capacity: BTreeMap::new() };
        for op in ops {
            match op {
                Op::Note(replica, prefix) => {
                    index.note(id(*replica), prefix);
                    naive.note(id(*replica), prefix);
                }
                Op::Resize(replica, kv) => {
                    index.resize(id(*replica), *kv);
                    naive.capacity.insert(id(*replica), *kv);
                    naive.shrink(id(*replica));
                }
                Op::Forget(replica) => {
                    index.forget(id(*replica));
                    naive.blocks.retain(|(other, _, _)| *other != id(*replica));
                }
            }
        }
        (index, naive)
    }

    /// All lists hold the same blocks, and no block is left over.
    fn is_whole(index: &PrefixIndex) -> bool {
        let live = index.blocks.len() - index.unused.len();
        let by_hash: usize = index.hashes.values().map(|chain| chain.len as usize).sum();
        let by_replica: usize = index.replicas.values().map(|cache| cache.chain.len as usize).sum();
        let walked: usize = index.hashes.keys().map(|hash| index.entries(*hash).count()).sum();
        let fits = index.replicas.values().all(|cache| cache.tokens <= cache.capacity);
        let few = index.hashes.values().all(|chain| (1..=MAX_HOLDERS).contains(&chain.len));
        [by_hash, by_replica, walked, index.len()].iter().all(|count| *count == live) && fits && few
    }

    proptest! {
        #[test]
        fn finds_what_a_plain_model_finds(
            ops in ops(5), asked in vec(prompts(), 1..6), bound in 1..120_usize,
        ) {
            let (index, naive) = play(&ops, bound, bound);
            prop_assert!(is_whole(&index));
            prop_assert_eq!(index.len(), naive.blocks.len());
            for replica in 0..5 {
                prop_assert_eq!(index.cached_tokens(id(replica)), naive.held(id(replica)));
            }
            let noted = ops.iter().filter_map(|op| match op {
                Op::Note(_, prefix) => Some(prefix),
                Op::Resize(..) | Op::Forget(_) => None,
            });
            for prefix in asked.iter().chain(noted) {
                let found: BTreeSet<_> = index.matches(prefix).into_iter().collect();
                prop_assert_eq!(found, naive.matches(prefix));
            }
        }

        #[test]
        fn with_many_holders_it_never_says_more_than_is_there(
            ops in ops(40), asked in prompts(), bound in 1..300_usize,
        ) {
            let (index, naive) = play(&ops, bound, usize::MAX);
            prop_assert!(is_whole(&index));
            let there: BTreeMap<_, _> = naive.matches(&asked).into_iter().collect();
            let found = index.matches(&asked);
            for (replica, tokens) in &found {
                prop_assert!(there.get(replica).is_some_and(|most| tokens <= most));
                prop_assert!(*tokens <= asked.blocks.len() as u64 * u64::from(asked.block_tokens));
            }
            prop_assert!(found.is_sorted_by_key(|(replica, tokens)| (std::cmp::Reverse(*tokens), *replica)));
        }

        #[test]
        fn hashes_that_are_no_chain_do_no_harm(
            prompts in vec((0..30_u32, vec(any::<u8>(), 0..20), any::<u32>()), 0..40), bound in 1..50_usize,
        ) {
            let mut index = PrefixIndex::bounded(bound);
            for (replica, words, block_tokens) in prompts {
                let blocks: Vec<u64> = words.iter().map(|word| u64::from(*word % 16)).collect();
                let prefix = PromptPrefix { blocks: blocks.into(), block_tokens };
                index.note(id(replica), &prefix);
                prop_assert!(is_whole(&index) && index.len() <= bound);
                let most = prefix.blocks.len() as u64 * u64::from(block_tokens);
                prop_assert!(index.matches(&prefix).iter().all(|(_, tokens)| *tokens <= most));
            }
        }
    }

    #[test]
    fn the_longest_comes_first_and_others_with_what_they_share() {
        let mut index = PrefixIndex::default();
        index.note(id(3), &prompt(&[1, 1, 1, 1], 16));
        index.note(id(2), &prompt(&[1, 1, 2], 16));
        index.note(id(1), &prompt(&[2, 1], 16));
        let found = index.matches(&prompt(&[1, 1, 1, 1, 1], 16));
        assert_eq!(found.as_slice(), [(id(3), 64), (id(2), 32)]);
        assert!(index.matches(&PromptPrefix::default()).is_empty());
        index.forget(id(3));
        assert_eq!(index.matches(&prompt(&[1, 1, 1, 1, 1], 16)).as_slice(), [(id(2), 32)]);
    }

    #[test]
    fn a_block_that_is_everywhere_costs_sixteen_entries_and_stays_with_its_last_users() {
        let mut index = PrefixIndex::default();
        for replica in 0..100 {
            index.note(id(replica), &prompt(&[5], 64));
        }
        assert_eq!(index.len(), 16);
        let found = index.matches(&prompt(&[5], 64));
        assert_eq!(
            found.iter().map(|(replica, _)| replica.index()).collect::<Vec<_>>(),
            Vec::from_iter(84..100)
        );
    }

    #[test]
    fn who_holds_the_rest_of_a_prompt_is_found_though_its_start_is_everywhere() {
        let mut index = PrefixIndex::default();
        index.note(id(0), &prompt(&[5, 5, 1, 1, 1], 64));
        for replica in 1..100 {
            index.note(id(replica), &prompt(&[5, 5, 2], 64));
        }
        let found = index.matches(&prompt(&[5, 5, 1, 1, 1], 64));
        assert_eq!(found.first(), Some(&(id(0), 320)));
        assert_eq!(found.len(), 17);
    }

    #[test]
    fn memory_is_bounded_over_all_replicas() {
        let mut index = PrefixIndex::bounded(1000);
        for round in 0..200_u64 {
            let blocks: Vec<u64> = (0..50).map(|block| round * 1000 + block).collect();
            index.resize(id(round as u32), u64::MAX);
            index.note(id(round as u32), &PromptPrefix { blocks: blocks.into(), block_tokens: 1 });
            assert!(index.len() <= 1000 && index.blocks.len() <= 1000);
        }
        assert_eq!((index.len(), index.hashes.len()), (1000, 1000));
        assert_eq!(index.cached_tokens(id(179)), 0, "the oldest went first");
        assert_eq!(index.cached_tokens(id(180)), 50);
        (0..200).for_each(|replica| index.remove(id(replica)));
        assert!(index.is_empty() && index.replicas.is_empty() && index.hashes.is_empty());
    }

    #[test]
    fn a_prompt_larger_than_the_cache_keeps_its_start() {
        let mut index = PrefixIndex::default();
        index.resize(id(0), 40);
        index.note(id(0), &prompt(&[1, 2, 3, 4, 5], 16));
        assert_eq!(index.matches(&prompt(&[1, 2, 3, 4, 5], 16)).as_slice(), [(id(0), 32)]);
        index.resize(id(0), 0);
        assert!(index.is_empty());
        index.note(id(0), &prompt(&[1], 16));
        assert!(index.is_empty());
    }
}
