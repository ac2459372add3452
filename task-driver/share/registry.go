package share

import (
	"fmt"
	"slices"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// Registry are the backends of a node in their fixed order.
type Registry struct{ backends []Backend }

// NewRegistry takes the backends in the order in which they are listed. It panics when two of one brand have one name, a
// mistake of the programmer.
func NewRegistry(backends ...Backend) *Registry {
	r := &Registry{}
	for _, b := range backends {
		if _, ok := r.Get(b.Vendor(), b.Name()); ok {
			panic(fmt.Sprintf("share: backend %s/%s twice", b.Vendor(), b.Name()))
		}
		r.backends = append(r.backends, b)
	}
	return r
}

// All are the backends.
func (r *Registry) All() []Backend { return slices.Clone(r.backends) }

// Get finds a backend of exactly this brand, or of every brand when it is empty.
func (r *Registry) Get(v accel.Vendor, name string) (Backend, bool) {
	at := slices.IndexFunc(r.backends, func(b Backend) bool { return b.Vendor() == v && b.Name() == name })
	if at < 0 {
		return nil, false
	}
	return r.backends[at], true
}

// Of are the backends that serve a brand, its own first.
func (r *Registry) Of(v accel.Vendor) []Backend {
	var own, every []Backend
	for _, b := range r.backends {
		switch b.Vendor() {
		case v:
			own = append(own, b)
		case "":
			every = append(every, b)
		}
	}
	return append(own, every...)
}
