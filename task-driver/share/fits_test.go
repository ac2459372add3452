package share

import (
	"errors"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
)

// particular makes shares of one card only.
type particular struct{ *stub }

func (particular) Fits(a Ask) error {
	if a.Of > 1 {
		return errors.New("one card only")
	}
	return nil
}

func TestChoose_AsksTheNextWhenOneDoesNotFit(t *testing.T) {
	t.Parallel()
	first, second := particular{newStub("first", accel.Silver)}, newStub("second", accel.Silver)
	m := NewManager(Options{Registry: NewRegistry(first, second), Dir: t.TempDir()})
	a := Ask{Vendor: accel.NVIDIA, Form: accel.Shared, QoS: accel.Silver, MemoryMiB: 1, Card: grant.Card{UUID: "GPU-1"}, Of: 1}
	if b, err := m.choose(t.Context(), a); err != nil || b != Backend(first) {
		t.Errorf("one card: %v, %v", b, err)
	}
	a.Of = 2
	if b, err := m.choose(t.Context(), a); err != nil || b != Backend(second) {
		t.Errorf("two cards: %v, %v", b, err)
	}
	second.probe = errors.New("it is not there")
	m.forget(second)
	if _, err := m.choose(t.Context(), a); err == nil || !strings.HasSuffix(err.Error(), "first: one card only; second: it is not there") {
		t.Errorf("neither: %v", err)
	}
}
