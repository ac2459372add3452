package device

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// full is a sample in which every field is known.
func full(t *testing.T, n float64) Sample {
	t.Helper()
	var s Sample
	yes := n > 1
	for v, i := reflect.ValueOf(&s).Elem(), 0; i < v.NumField(); i++ {
		switch f := v.Field(i); f.Interface().(type) {
		case *float64:
			f.Set(reflect.ValueOf(ptr(n + float64(i)/100)))
		case *uint64:
			f.Set(reflect.ValueOf(ptr(uint64(n))))
		case *bool:
			f.Set(reflect.ValueOf(&yes))
		case []int:
			f.Set(reflect.ValueOf([]int{int(n)}))
		default:
			t.Fatalf("a sample has a %s", f.Type())
		}
	}
	return s
}

func TestSample_FillKeepsWhatIsKnownAndTakesEveryField(t *testing.T) {
	t.Parallel()
	var empty Sample
	empty.Fill(full(t, 1))
	if diff := cmp.Diff(full(t, 1), empty); diff != "" {
		t.Errorf("what was not known (-want +got):\n%s", diff)
	}
	known := full(t, 1)
	known.Fill(full(t, 2))
	if diff := cmp.Diff(full(t, 1), known); diff != "" {
		t.Errorf("what was known (-want +got):\n%s", diff)
	}
}
