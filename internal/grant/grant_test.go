package grant

import (
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

func TestMark_FromReservationToLease(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "leases")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := Reservation{Vendor: accel.NVIDIA, Form: accel.Shared, Instances: []string{"c1.0"}, Cards: []Card{{UUID: "GPU-a", Units: 1}}}
	if err := MarkReserved(dir, r, at); err != nil {
		t.Fatal(err)
	}
	got, err := Reserved(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]time.Time{"GPU-a": at}, got); diff != "" {
		t.Errorf("reserved (-want +got):\n%s", diff)
	}
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
	if got, err := Reserved(dir); err != nil || len(got) != 0 {
		t.Errorf("after the take-over: %v, %v", got, err)
	}
}

// TestTidyReserved_KeepsOnlyWhatStillCounts: what was reserved for tasks that never came must not pile up, and a clock
// that was set back must not hold a card until it is there again.
func TestTidyReserved_KeepsOnlyWhatStillCounts(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state [1]")
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for card, at := range map[string]time.Time{
		"old": now.Add(-time.Minute), "young": now.Add(-59 * time.Second), "future": now.Add(1000 * time.Hour),
	} {
		if err := MarkReserved(dir, Reservation{Instances: []string{card}, Cards: []Card{{UUID: card}}}, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := TidyReserved(dir, now, time.Minute); err != nil {
		t.Fatal(err)
	}
	got, err := Reserved(dir)
	want := map[string]time.Time{"young": now.Add(-59 * time.Second), "future": now}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("(-want +got)\n%s%v", diff, err)
	}
	if err := TidyReserved(filepath.Join(dir, "absent"), now, time.Minute); err != nil {
		t.Errorf("an absent folder: %v", err)
	}
}
