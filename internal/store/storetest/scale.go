//go:build unix

package storetest

import (
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

// testScaleStates: of those who decide at the same time one wins, and what nobody decides on any more is forgotten.
func testScaleStates(t *testing.T, open Open) {
	s, now := openAt(t, open)
	ctx := t.Context()
	read := func(group string) store.ScaleState { return ok2(s.ScaleState(ctx, "default", "llm", group))(t) }
	same(t, store.ScaleState{Namespace: "default", JobID: "llm", Group: "serve"}, read("serve"))
	for round := range 3 {
		var won atomic.Int32
		state := read("serve")
		state.State = json.RawMessage(`{"count":2}`)
		together(4, func(int) {
			mine, err := s.PutScaleState(ctx, state)
			if err != nil {
				t.Error(err)
			}
			if mine {
				won.Add(1)
			}
		})
		same(t, int32(1), won.Load())
		got := read("serve")
		same(t, int64(round+1), got.Version)
		same(t, `{"count":2}`, string(got.State))
	}
	now.Advance(8 * 24 * time.Hour)
	same(t, true, ok2(s.PutScaleState(ctx, store.ScaleState{Namespace: "default", JobID: "llm", Group: "other"}))(t))
	same(t, int64(0), read("serve").Version)
	_, err := s.PutScaleState(ctx, store.ScaleState{Namespace: "a\x00"})
	wantErr(t, err, store.ErrInvalid)
}
