package submit

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/placement-service/engine/preempt"
)

// What gangs give is enough, each gives from its end, and none gives one that is not needed.
func TestFewest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var all []surplus
		for range rapid.IntRange(1, 4).Draw(t, "gangs") {
			g := &elasticGang{}
			size := rapid.IntRange(1, 4).Draw(t, "size") // of each of its members
			for range rapid.IntRange(1, 5).Draw(t, "members") {
				all = append(all, surplus{g, preempt.Allocation{CPUMHz: size}})
			}
		}
		need := rapid.IntRange(0, 40).Draw(t, "need")
		sum := func(list []surplus) (n int) {
			for _, one := range list {
				n += one.CPUMHz
			}
			return n
		}
		fits := func(list []surplus) bool { return sum(list) >= need }
		gone, ok := fewest(all, fits)
		if ok != fits(all) {
			t.Fatalf("%v, and all of them give %d of %d", ok, sum(all), need)
		}
		if !ok {
			return
		}
		if !fits(gone) {
			t.Fatalf("%d of %d", sum(gone), need)
		}
		next := map[*elasticGang]int{}
		for _, one := range gone {
			next[one.gang]++
			if sum(gone)-one.CPUMHz >= need {
				t.Fatalf("%d of %d, with one of %d too many", sum(gone), need, one.CPUMHz)
			}
		}
	})
}
