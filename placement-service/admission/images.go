package admission

import (
	"maps"
	"slices"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// limitToImages keeps a task that has an image for some brands only away from the others: an ask for any brand
// becomes one for those, and a brand that is asked for and has no image is a problem.
func (r *reader) limitToImages(path string, config map[string]any, ask *accel.Ask) {
	images := imagesOf(config)
	if fallback, _ := config["image"].(string); ask == nil || fallback != "" || len(images) == 0 {
		return
	}
	before := len(r.problems)
	has := map[accel.Vendor]bool{}
	for _, name := range slices.Sorted(maps.Keys(images)) {
		v, err := accel.ParseVendor(name)
		if err != nil {
			r.bad(path+".images."+name, "%s", err)
			continue
		}
		has[v] = true
	}
	for _, v := range ask.Vendors {
		if !has[v] {
			r.bad(path+".images", `there is no image for brand %s, which the accelerator block accepts: add %s = "…", or image = "…" for every other brand`, v, v)
		}
	}
	if len(ask.Vendors) > 0 || len(r.problems) > before {
		return
	}
	for _, v := range accel.Vendors() {
		if has[v] {
			ask.Vendors = append(ask.Vendors, v)
		}
	}
}

// imagesOf is the images map of a task's config: an object, or the list of one that a block in HCL becomes.
func imagesOf(config map[string]any) map[string]any {
	v := config["images"]
	if l, ok := v.([]any); ok && len(l) == 1 {
		v = l[0]
	}
	m, _ := v.(map[string]any)
	return m
}
