package grant

import (
	"crypto/ed25519"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
)

func TestReservations_TwoBlocksOfOneBrandStayApart(t *testing.T) {
	t.Parallel()
	a := Reservation{Vendor: accel.NVIDIA, Form: accel.Shared, Instances: []string{"c1.1", "c1.0"}, UnitMiB: 1024, Cards: []Card{{UUID: "GPU-a", Units: 2}}}
	b := Reservation{Vendor: accel.NVIDIA, Form: accel.Whole, Instances: []string{"GPU-b"}, Cards: []Card{{UUID: "GPU-b", MemoryMiB: 81920, Units: 1}}}
	env := map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"}
	for _, r := range []Reservation{a, b} {
		name, value, err := r.Env()
		if err != nil {
			t.Fatal(err)
		}
		env[name] = value
	}
	got, err := Reservations(env)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 {
		t.Fatalf("want both reservations, got %d from %v", len(got), env)
	}
	byCard := map[string]uint64{}
	for _, r := range got {
		byCard[r.Cards[0].UUID] = r.MemoryMiB(r.Cards[0])
	}
	if diff := cmp.Diff(map[string]uint64{"GPU-a": 2048, "GPU-b": 81920}, byCard); diff != "" {
		t.Errorf("granted memory (-want +got):\n%s", diff)
	}
}

func TestReservations_Unreadable(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{"not JSON": "{", "a later version": `{"v":2}`} {
		if _, err := Reservations(map[string]string{EnvPrefix + "00": value}); err == nil {
			t.Errorf("%s: want an error", name)
		}
	}
}

func TestGrant_SignedAndRead(t *testing.T) {
	t.Parallel()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	want := Grant{ID: "g1", Tenant: "research", Job: "llm", Group: "serve", Task: "vllm", Count: 1, MemoryMiB: 20480, QoS: accel.Bronze}
	token, err := want.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := want.Sign(key); again != token {
		t.Error("the same grant and key must give the same token, or every run would change the job")
	}
	got, err := Parse(token, key.Public().(ed25519.PublicKey))
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, none := range []ed25519.PublicKey{nil, {}} {
		if g, err := Parse(token, none); !errors.Is(err, ErrNoKey) || g.ID != "" {
			t.Errorf("without a key: want ErrNoKey and no grant, got %+v, %v", g, err)
		}
	}
	if _, err := Parse(token, other.Public().(ed25519.PublicKey)); !errors.Is(err, ErrSignature) {
		t.Errorf("foreign key: want ErrSignature, got %v", err)
	}
	body, sig, _ := strings.Cut(strings.TrimPrefix(token, tokenPrefix), ".")
	if _, err := Parse(tokenPrefix+"A"+body[1:]+"."+sig, key.Public().(ed25519.PublicKey)); err == nil {
		t.Error("a changed body must be refused")
	}
}

func FuzzParse(f *testing.F) {
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	token, err := Grant{ID: "g1"}.Sign(key)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{token, token[:len(token)-2], "hfg1.e30.AA", "hfg1.", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		switch g, err := Parse(token, key.Public().(ed25519.PublicKey)); {
		case err != nil && g.ID != "":
			t.Error("an error must come without a grant")
		case err == nil && (g.ID != "g1" || !IsToken(token)):
			t.Errorf("a grant that nobody signed is accepted: %+v", g)
		}
	})
}

func TestLease_LifeAndDamage(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "leases")
	if got, err := Leases(dir); err != nil || got != nil {
		t.Fatalf("no folder: want none, got %v, %v", got, err)
	}
	want := Lease{TaskID: "alloc/task/1a2b", AllocID: "alloc", Cards: []string{"GPU-a"}, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	for range 2 {
		if err := WriteLease(dir, want); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Leases(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Lease{want}, got); diff != "" {
		t.Errorf("leases (-want +got):\n%s", diff)
	}
	if err := os.WriteFile(filepath.Join(dir, "x"+leaseSuffix), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := Leases(dir); err == nil || len(got) != 1 {
		t.Errorf("damaged file: want its error beside the good lease, got %v, %v", got, err)
	}
	for range 2 {
		if err := RemoveLease(dir, want.TaskID); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := Leases(dir); len(got) != 0 {
		t.Errorf("after removal: %v", got)
	}
}

// stopwatch is a time that a test moves.
type stopwatch time.Duration

func (w *stopwatch) elapsed() time.Duration { return time.Duration(*w) }

func reservationOf(card string) Reservation {
	return Reservation{Vendor: accel.NVIDIA, Form: accel.Shared, Instances: []string{card + ".0"}, Cards: []Card{{UUID: card, Units: 1}}}
}

func wantFresh(t interface {
	Helper()
	Fatalf(string, ...any)
}, m *Marks, want ...string) {
	t.Helper()
	got, err := m.Fresh(time.Minute)
	if slices.Sort(want); err != nil || !slices.Equal(slices.Sorted(maps.Keys(got)), want) {
		t.Fatalf("fresh are %v, want %v; %v", got, want, err)
	}
}

func TestMark_FromReservationToLease(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state [1]", "leases")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m, r := NewMarks(dir, new(stopwatch).elapsed), reservationOf("GPU-a")
	wantFresh(t, m)
	if err := m.Tidy(time.Minute); err != nil {
		t.Errorf("an absent folder: %v", err)
	}
	if err := m.Add(r, at); err != nil {
		t.Fatal(err)
	}
	wantFresh(t, m, "GPU-a")
	if leases, err := Leases(dir); err != nil || len(leases) != 0 {
		t.Errorf("a mark is no lease: %v, %v", leases, err)
	}
	name, value, err := r.Env()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // taking over again is harmless
		if err := TakeReserved(dir, map[string]string{name: value, "PATH": "/bin"}); err != nil {
			t.Fatal(err)
		}
	}
	wantFresh(t, m)
}

// A mark that cannot be read may be of any card: it is told, beside those that can be read, and stays.
func TestMark_Unreadable(t *testing.T) {
	t.Parallel()
	dir, watch := t.TempDir(), new(stopwatch)
	m := NewMarks(dir, watch.elapsed)
	if err := m.Add(reservationOf("GPU-a"), time.Time{}); err != nil {
		t.Fatal(err)
	}
	broken := markPath(dir, "BROKEN")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Fresh(time.Minute); err == nil || !got["GPU-a"] {
		t.Errorf("fresh are %v, %v", got, err)
	}
	*watch += stopwatch(time.Hour)
	if err := m.Tidy(time.Minute); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(broken); err != nil {
		t.Error(err)
	}
	if got, err := m.Fresh(time.Minute); err == nil || len(got) > 0 {
		t.Errorf("an hour later fresh are %v, %v", got, err)
	}
}

// Two processes of the plugin, as while one is replaced: what one hands out again is fresh for the other too.
func TestMark_RenewedByAnother(t *testing.T) {
	t.Parallel()
	dir, watch := t.TempDir(), new(stopwatch)
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	one, other := NewMarks(dir, watch.elapsed), NewMarks(dir, watch.elapsed)
	for _, at := range []time.Time{noon, noon.Add(time.Second), noon.Add(-time.Hour)} {
		if err := one.Add(reservationOf("GPU-a"), at); err != nil {
			t.Fatal(err)
		}
		wantFresh(t, other, "GPU-a")
		*watch += stopwatch(59 * time.Second)
		wantFresh(t, other, "GPU-a")
	}
	*watch += stopwatch(time.Second)
	wantFresh(t, one)
	wantFresh(t, other)
}

// Whatever becomes of the clock, a reservation counts for a minute after it was handed out, and no longer, but for a restart
// of the plugin, from which another minute counts. What does not count any more goes when the folder is tidied.
func TestMark_AgeIsNotTheClocks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "marks")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		watch, clock := new(stopwatch), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		m := NewMarks(dir, watch.elapsed)
		since := map[string]time.Duration{} // what the folder holds
		want := func() []string {
			var fresh []string
			for card, at := range since {
				if watch.elapsed()-at < time.Minute {
					fresh = append(fresh, card)
				}
			}
			return fresh
		}
		card := rapid.SampledFrom([]string{"GPU-a", "GPU-b", "GPU-c"})
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { wantFresh(t, m, want()...) },
			"time passes": func(t *rapid.T) {
				d := time.Duration(rapid.IntRange(1, 70).Draw(t, "seconds")) * time.Second
				*watch, clock = *watch+stopwatch(d), clock.Add(d)
			},
			"the clock is set": func(t *rapid.T) {
				clock = clock.Add(time.Duration(rapid.Int64Range(-1e9, 1e9).Draw(t, "seconds")) * time.Second)
			},
			"reserve": func(t *rapid.T) {
				c := card.Draw(t, "card")
				if err := m.Add(reservationOf(c), clock); err != nil {
					t.Fatal(err)
				}
				since[c] = watch.elapsed()
			},
			"take over": func(t *rapid.T) {
				c := card.Draw(t, "card")
				name, value, err := reservationOf(c).Env()
				if err != nil {
					t.Fatal(err)
				}
				if err := TakeReserved(dir, map[string]string{name: value}); err != nil {
					t.Fatal(err)
				}
				delete(since, c)
			},
			"restart": func(*rapid.T) {
				m = NewMarks(dir, watch.elapsed)
				for c := range since {
					since[c] = watch.elapsed()
				}
			},
			"tidy": func(t *rapid.T) {
				if err := m.Tidy(time.Minute); err != nil {
					t.Fatal(err)
				}
				fresh := want()
				maps.DeleteFunc(since, func(c string, _ time.Duration) bool { return !slices.Contains(fresh, c) })
				files, err := filepath.Glob(filepath.Join(dir, "*"+markSuffix))
				if err != nil || len(files) != len(since) {
					t.Fatalf("after tidying there are %v, want %d; %v", files, len(since), err)
				}
			},
		})
	})
}
