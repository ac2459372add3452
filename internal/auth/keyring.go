package auth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

// KeyChanges is where a Keyring follows keys.
type KeyChanges interface {
	Revision(ctx context.Context, kind string) (int64, error)
	KeyChanges(ctx context.Context, revision int64, id string) (keys []store.Key, last int64, lastID string, err error)
	TouchKey(ctx context.Context, id string, at time.Time) error
}

var _ KeyChanges = (*store.Store)(nil)

var errNotRead = errors.New("keys have not been read yet")

const (
	// followEvery is how often changes are asked for; a revoked key is refused within it and one reading.
	followEvery = 250 * time.Millisecond
	// askAgain is the least time between two readings that unknown keys cause.
	askAgain = 20 * time.Millisecond
	// readFor bounds one reading.
	readFor = 2 * time.Second
	// noteEvery is how often last uses are written.
	noteEvery = 10 * time.Second
)

// Keyring tells who holds a key from a copy of all keys, which it keeps current: nothing is read for a key that it
// knows, and it knows them while the store is away. An unknown key waits for the next reading, which many share. It is
// safe for concurrent use.
type Keyring struct {
	source KeyChanges
	clock  clock.Clock
	log    hclog.Logger

	shards [64]shard

	mu   sync.Mutex
	next *reading
	err  error // of the last reading
	kick chan struct{}

	// Of Run alone.
	entries  map[string]*entry // by id
	loaded   bool
	revision int64 // as the store counts
	last     int64 // of the last key that was read, with its id
	lastID   string
	noted    time.Time
	away     bool
}

// shard is the keys whose hash begins alike.
type shard struct {
	mu   sync.RWMutex
	keys map[[sha256.Size]byte]*kept
}

// kept is one text of a key.
type kept struct {
	id    Identity
	until *time.Time // nil is for ever
	used  *atomic.Int64
}

// entry is what Run knows of one key.
type entry struct {
	texts [][sha256.Size]byte // their hashes
	used  *atomic.Int64       // last, Unix seconds
	noted int64               // the same, as it was written
}

// reading is one look at the store.
type reading struct {
	done chan struct{}
	err  error
}

// NewKeyring makes a keyring; Run fills it and keeps it current. A nil clock is the system's, a nil logger logs nothing.
func NewKeyring(source KeyChanges, c clock.Clock, log hclog.Logger) *Keyring {
	if c == nil {
		c = clock.System()
	}
	if log == nil {
		log = hclog.NewNullLogger()
	}
	k := &Keyring{source: source, clock: c, log: log, last: -1, err: errNotRead, next: &reading{done: make(chan struct{})}, kick: make(chan struct{}, 1), entries: map[string]*entry{}}
	for i := range k.shards {
		k.shards[i].keys = map[[sha256.Size]byte]*kept{}
	}
	return k
}

// Identify tells who holds the key, as Authenticator.Identify does.
func (k *Keyring) Identify(ctx context.Context, token string) (Identity, error) {
	if token == "" {
		return Identity{}, ErrNoCredentials
	}
	kind, ok := kindOf(token)
	if !ok {
		return Identity{}, ErrBadCredentials
	}
	var room [64]byte // in which a token is copied without new memory
	sum := sha256.Sum256(append(room[:0], token...))
	found := k.find(sum)
	if found == nil {
		if err := k.await(ctx); err != nil {
			return Identity{}, fmt.Errorf("look up key: %w", err)
		}
		found = k.find(sum)
	}
	if found == nil || found.id.Kind != kind {
		return Identity{}, ErrBadCredentials
	}
	now := k.clock.Now()
	if found.until != nil && !now.Before(*found.until) {
		return Identity{}, ErrExpired
	}
	if second := now.Unix(); found.used.Load() != second {
		found.used.Store(second)
	}
	return found.id, nil
}

func (k *Keyring) find(sum [sha256.Size]byte) *kept {
	s := &k.shards[sum[0]&63]
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.keys[sum]
}

// await waits for a reading that begins after the call.
func (k *Keyring) await(ctx context.Context) error {
	k.mu.Lock()
	r := k.next
	k.mu.Unlock()
	select {
	case k.kick <- struct{}{}:
	default:
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run keeps the copy current until the context ends.
func (k *Keyring) Run(ctx context.Context) error {
	tick := k.clock.NewTicker(followEvery)
	defer tick.Stop()
	for {
		k.Follow(ctx)
		select {
		case <-tick.C():
			continue
		case <-ctx.Done():
			return ctx.Err()
		case <-k.kick:
		}
		// A flood of keys that nobody knows costs the store a small question now and then.
		if !clock.Sleep(ctx, k.clock, askAgain) {
			return ctx.Err()
		}
	}
}

// Follow reads once what changed, and notes last uses when it is time. Run calls it; it is not safe for concurrent use.
func (k *Keyring) Follow(ctx context.Context) {
	k.mu.Lock()
	r := k.next
	k.next = &reading{done: make(chan struct{})}
	k.mu.Unlock()
	defer close(r.done)
	r.err = k.read(ctx)
	k.mu.Lock()
	k.err = r.err
	k.mu.Unlock()
	if r.err != nil {
		if !k.away && ctx.Err() == nil {
			k.away = true
			k.log.Warn("keys not read: those that are known open as before", "error", r.err)
		}
		return
	}
	k.away = false
	if now := k.clock.Now(); now.Sub(k.noted) >= noteEvery {
		k.noted = now
		k.note(ctx)
	}
}

func (k *Keyring) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readFor)
	defer cancel()
	revision, err := k.source.Revision(ctx, store.KeyRevision)
	if err != nil {
		return err
	}
	if k.loaded && revision == k.revision {
		return nil
	}
	if revision < k.revision { // an older database was put back: nothing that is known counts any more
		k.forget()
	}
	for {
		keys, last, lastID, err := k.source.KeyChanges(ctx, k.last, k.lastID)
		if err != nil {
			return err
		}
		for _, key := range keys {
			k.put(key)
		}
		k.last, k.lastID = last, lastID
		if len(keys) < store.MaxPageLimit {
			break
		}
	}
	k.loaded, k.revision = true, revision
	return nil
}

func (k *Keyring) forget() {
	k.last, k.lastID, k.entries = -1, "", map[string]*entry{}
	for i := range k.shards {
		s := &k.shards[i]
		s.mu.Lock()
		clear(s.keys)
		s.mu.Unlock()
	}
}

// put takes over a key as it is now.
func (k *Keyring) put(key store.Key) {
	e := k.entries[key.ID]
	if e == nil {
		e = &entry{used: &atomic.Int64{}}
		if key.LastUsedAt != nil {
			e.noted = key.LastUsedAt.Unix()
		}
		k.entries[key.ID] = e
	}
	for _, sum := range e.texts {
		k.set(sum, nil)
	}
	e.texts = e.texts[:0]
	for _, hash := range []string{key.Hash, key.PriorHash} {
		until, ok := key.Opens(hash)
		raw, err := hex.DecodeString(hash)
		if !ok || err != nil || len(raw) != sha256.Size {
			continue
		}
		sum := [sha256.Size]byte(raw)
		k.set(sum, &kept{id: identityOf(key), until: until, used: e.used})
		e.texts = append(e.texts, sum)
	}
	if key.RevokedAt != nil {
		delete(k.entries, key.ID)
	}
}

func (k *Keyring) set(sum [sha256.Size]byte, to *kept) {
	s := &k.shards[sum[0]&63]
	s.mu.Lock()
	defer s.mu.Unlock()
	if to == nil {
		delete(s.keys, sum)
		return
	}
	s.keys[sum] = to
}

// note writes when keys were used last. One that cannot be written is written next time.
func (k *Keyring) note(ctx context.Context) {
	for id, e := range k.entries {
		last := e.used.Load()
		if last-e.noted < int64(touchEvery/time.Second) {
			continue
		}
		if err := k.source.TouchKey(ctx, id, time.Unix(last, 0).UTC()); err != nil {
			if ctx.Err() == nil {
				k.log.Warn("last use of key not noted", "key_id", id, "error", err)
			}
			return
		}
		e.noted = last
	}
}

// Err is nil once the keys are known and the store answers.
func (k *Keyring) Err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}
