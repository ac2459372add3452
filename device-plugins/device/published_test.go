package device

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
)

func TestPublished_OnlyAddsAndNeverReplaces(t *testing.T) {
	t.Parallel()
	type facts struct{ arch, memory, hint string }
	for name, tc := range map[string]struct {
		card accel.Card
		want facts
	}{
		"the card tells its memory": {accel.Card{Vendor: accel.Ascend, Model: "910B3", MemoryMiB: ptr(uint64(60000))}, facts{"Da Vinci", "60000 MiB", ""}},
		"it does not":               {accel.Card{Vendor: accel.Ascend, Model: "910B3"}, facts{"Da Vinci", "", "65536 MiB"}},
		"by the printed name":       {accel.Card{Vendor: accel.AMD, Model: "X", RawName: "AMD Instinct MI300X OAM"}, facts{"CDNA3", "", "196608 MiB"}},
		"shared, memory unknown":    {accel.Card{Vendor: accel.AMD, Model: "MI300X", Form: accel.Shared}, facts{"CDNA3", "", "196608 MiB"}},
		"a partition":               {accel.Card{Vendor: accel.AMD, Model: "MI300X CPX", Form: accel.Partition}, facts{"CDNA3", "", ""}},
		"no architecture published": {accel.Card{Vendor: accel.Biren, Model: "Biren106M"}, facts{"", "", "32512 MiB"}},
		"an unknown model":          {accel.Card{Vendor: accel.NVIDIA, Model: "unknown"}, facts{}},
	} {
		a := offer{Card: tc.card, sliceMiB: 1024}.facts()
		mib := func(attr string) string {
			if a[attr] == nil {
				return ""
			}
			return strconv.FormatInt(a[attr].GetIntVal(), 10) + " " + a[attr].Unit
		}
		got := facts{a[accel.AttrArch].GetStringVal(), mib(accel.AttrMemory), mib(accel.AttrHintMemory)}
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(facts{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if tc.card.MemoryMiB == nil && tc.card.Form != accel.Shared && a[accel.AttrUnitMemory] != nil {
			t.Errorf("%s: the hint became the memory of an instance", name)
		}
	}
}

// A hint about some cards of a group does not stand beside the memory that the others tell.
func TestPublished_NoHintForAWholeGroup(t *testing.T) {
	t.Parallel()
	mute := good("GPU-a", "0000:01:00.0")
	mute.MemoryMiB = nil
	whole := sharedFacts([]offer{{Card: mute}, {Card: good("GPU-b", "0000:02:00.0")}})
	if whole[accel.AttrHintMemory] != nil || whole[accel.AttrMemory] == nil || whole[accel.AttrArch].GetStringVal() != "Ampere" {
		t.Errorf("attributes %v", whole)
	}
}
