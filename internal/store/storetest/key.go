//go:build unix

package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

func testKey(n int, tenant string) store.Key {
	return store.Key{
		ID: fmt.Sprintf("k%02d", n), Kind: "tenant", Name: "ci", Tenant: tenant, Role: "member", Prefix: "hf-tenant-abc",
		Hash: fmt.Sprintf("hash-%d", n), Endpoints: []string{"e1", "e2"}, CreatedAt: epoch,
	}
}

func testKeys(t *testing.T, open Open) {
	s := open(t)
	ctx := t.Context()

	expires := epoch.Add(time.Hour)
	k := testKey(0, "research")
	k.ExpiresAt = &expires
	ok(t, s.CreateKey(ctx, k))
	same(t, k, ok2(s.KeyByHash(ctx, k.Hash))(t))
	_, err := s.KeyByHash(ctx, "other")
	wantErr(t, err, store.ErrNotFound)

	twice := testKey(1, "research")
	twice.Hash = k.Hash
	wantErr(t, s.CreateKey(ctx, twice), store.ErrConflict)

	ok(t, s.TouchKey(ctx, k.ID, epoch.Add(time.Minute)))
	ok(t, s.TouchKey(ctx, k.ID, epoch)) // a late note of an earlier use
	if used := ok2(s.KeyByHash(ctx, k.Hash))(t).LastUsedAt; used == nil || !used.Equal(epoch.Add(time.Minute)) {
		t.Errorf("last used at %v", used)
	}

	// Same moment: the id decides, and no page loses or repeats one.
	for n := 1; n < 9; n++ {
		ok(t, s.CreateKey(ctx, testKey(n, []string{"research", "ops"}[n%2])))
	}
	list := func(tenant string) (ids []string) {
		for _, k := range allPages(t, func(p store.Page) ([]store.Key, string, error) { return s.ListKeys(ctx, tenant, p) }) {
			ids = append(ids, k.ID)
		}
		return ids
	}
	same(t, []string{"k00", "k01", "k02", "k03", "k04", "k05", "k06", "k07", "k08"}, list(""))
	same(t, []string{"k01", "k03", "k05", "k07"}, list("ops"))
	_, _, err = s.ListKeys(ctx, "", store.Page{Cursor: "made up"})
	wantErr(t, err, store.ErrBadCursor)

	wantErr(t, s.DeleteKey(ctx, "ops", "k00"), store.ErrNotFound)
	ok(t, s.DeleteKey(ctx, "research", "k00"))
	ok(t, s.DeleteKey(ctx, "", "k01"))
	wantErr(t, s.DeleteKey(ctx, "", "k01"), store.ErrNotFound)
}

func testSettings(t *testing.T, open Open) {
	s := open(t)
	ctx := t.Context()
	_, err := s.Setting(ctx, "a")
	wantErr(t, err, store.ErrNotFound)
	_, _, err = s.SetSettingOnce(ctx, "a", "1")
	ok(t, err)
	same(t, "1", ok2(s.Setting(ctx, "a"))(t))

	// Of many who set it once, one wins and all learn its value.
	var wg sync.WaitGroup
	var mu sync.Mutex
	winners, values := []string{}, map[string]bool{}
	for n := range 16 {
		wg.Go(func() {
			mine := fmt.Sprint(n)
			current, won, err := s.SetSettingOnce(ctx, "once", mine)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			values[current] = true
			if won {
				winners = append(winners, mine)
			}
		})
	}
	wg.Wait()
	if len(winners) != 1 || len(values) != 1 || !values[winners[0]] {
		t.Errorf("winners %v, values %v", winners, values)
	}

	created := ok2(s.CreateKeyOnce(ctx, "first", "k1", testKey(1, "")))(t)
	again := ok2(s.CreateKeyOnce(ctx, "first", "k2", testKey(2, "")))(t)
	if !created || again {
		t.Errorf("created %v, again %v", created, again)
	}
	_, err = s.KeyByHash(ctx, "hash-2")
	wantErr(t, err, store.ErrNotFound)
	// A key that cannot be stored leaves no setting behind.
	_, err = s.CreateKeyOnce(ctx, "second", "k1", testKey(1, ""))
	wantErr(t, err, store.ErrConflict)
	_, err = s.Setting(ctx, "second")
	wantErr(t, err, store.ErrNotFound)
}
