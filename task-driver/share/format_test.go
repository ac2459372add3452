package share

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
)

// The device plugin reads in every state of a share what the driver writes.
func TestLedger_IsReadByTheDevicePlugin(t *testing.T) {
	t.Parallel()
	l := files{dir: t.TempDir()}
	for _, state := range []State{Issued, Confirmed, Releasing, TimedOut} {
		a := Ask{ID: "hf0123456789abcdef", TaskID: "t", Vendor: accel.Ascend, Card: grant.Card{UUID: "NPU-1"}, Form: accel.Shared, MemoryMiB: 1}
		if err := l.put(Entry{Ask: a, Backend: "vnpu", State: state, Since: time.Unix(1, 0)}); err != nil {
			t.Fatal(err)
		}
		got, err := grant.Shares(l.dir)
		want := map[string]grant.Share{string(a.ID): {
			ID: string(a.ID), TaskID: "t", Vendor: accel.Ascend, Card: "NPU-1", Form: accel.Shared, State: grant.ShareState(state),
		}}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s (-want +got)\n%s%v", state, diff, err)
		}
	}
}
