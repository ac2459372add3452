package device

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/heteroflow/heteroflow/device-plugins/catalogue"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/structspb"
)

// An offer is a card in the form in which it is offered.
type offer struct {
	accel.Card
	neighbours
	found    accel.Form // as the detector found it
	policy   string
	sliceMiB uint64 // memory of one slice of the shared and the mig form
	waits    string // why nobody else gets it for now; empty when nothing does
}

// inSlices tells whether the card has a group of its own, with slices of memory as instances.
func (o offer) inSlices() bool { return o.Form == accel.Shared || o.Form == accel.MIG }

// instances are the Nomad instance ids of the offer; a divided card has none.
func (o offer) instances() []string {
	switch {
	case o.Form == accel.Divided:
		return nil
	case !o.inSlices():
		return []string{o.UUID}
	}
	n := max(1, o.Slices(o.sliceMiB)) // a card of unknown size is shown by one unhealthy slice
	ids := make([]string, n)
	for i := range ids {
		ids[i] = o.SliceID(i)
	}
	return ids
}

// unitMiB is the memory of one instance, nil when it is not known.
func (o offer) unitMiB() *uint64 {
	switch {
	case o.Form == accel.Divided, o.Form == accel.MIG && o.sliceMiB == 0:
		return nil
	case o.inSlices():
		return &o.sliceMiB
	}
	return o.MemoryMiB
}

type attributes = map[string]*structspb.Attribute

// facts are all attributes of the card that are known. None of them changes while the card lives, except state.
func (o offer) facts() attributes {
	a := attributes{
		accel.AttrUUID: textAttr(o.UUID), accel.AttrModel: textAttr(o.Model),
		accel.AttrForm: textAttr(string(o.Form)), accel.AttrPolicy: textAttr(o.policy), accel.AttrState: stateAttr(o.health().OK),
	}
	if o.Index >= 0 {
		a[accel.AttrIndex] = intAttr(int64(o.Index), "")
	}
	if o.PCIAddress != "" {
		a[accel.AttrPCI] = textAttr(o.PCIAddress)
	}
	if o.NUMANode != nil {
		a[accel.AttrNUMA] = intAttr(int64(*o.NUMANode), "")
	}
	if o.MemoryMiB != nil {
		a[accel.AttrMemory] = intAttr(int64(*o.MemoryMiB), "MiB")
	}
	o.published(a)
	if text := accel.FormatRounding(o.Rounding); text != "" {
		a[accel.AttrRounding] = textAttr(text)
	}
	if o.Parent != "" {
		a[accel.AttrParent] = textAttr(o.Parent)
	}
	if unit := o.unitMiB(); unit != nil {
		a[accel.AttrUnitMemory] = intAttr(int64(*unit), "MiB")
	}
	if o.DriverVersion != "" {
		a[accel.AttrDriver] = textAttr(o.DriverVersion)
	}
	if len(o.Modes) > 0 {
		a[accel.AttrModes] = textAttr(strings.Join(o.Modes, ","))
	}
	for name, text := range map[string]string{accel.AttrLinks: o.links, accel.AttrNIC: o.nic, accel.AttrNICLink: o.nicLink} {
		if text != "" {
			a[name] = textAttr(text)
		}
	}
	return a
}

// published adds what is published of the model. It is never taken for what the card itself says: where the memory is not
// known it stays unknown, and what is published is a hint under a name of its own. A partition has a part of its board's.
func (o offer) published(a attributes) {
	product, known := catalogue.ByName(o.Vendor, o.RawName, o.Model)
	if !known {
		return
	}
	if product.Arch != "" {
		a[accel.AttrArch] = textAttr(product.Arch)
	}
	if o.MemoryMiB == nil && product.MemoryMiB != nil && o.Form != accel.Partition {
		a[accel.AttrHintMemory] = intAttr(int64(*product.MemoryMiB), "MiB")
	}
}

// modelFacts are the attributes that a group of several cards may carry.
var modelFacts = []string{
	accel.AttrMemory, accel.AttrUnitMemory, accel.AttrModel, accel.AttrArch, accel.AttrDriver, accel.AttrForm, accel.AttrPolicy, accel.AttrModes,
	accel.AttrRounding,
}

// sharedFacts are those that all cards that know them agree on. A card that lost its voice does not change the others.
func sharedFacts(offers []offer) attributes {
	common, disputed := attributes{}, map[string]bool{}
	healthy := false
	for _, o := range offers {
		healthy = healthy || o.health().OK
		facts := o.facts()
		for _, name := range modelFacts {
			value, known := facts[name]
			if !known {
				continue
			}
			if have, ok := common[name]; ok && !proto.Equal(have, value) {
				disputed[name] = true
			}
			common[name] = value
		}
	}
	for name := range disputed {
		delete(common, name)
	}
	common[accel.AttrState] = stateAttr(healthy)
	return common
}

// deviceGroups turns offers into what Nomad is told: a group per model for whole cards and partitions, with a
// descriptor beside it for each card; a group per card for those in slices. Of a divided card there is the descriptor alone.
// The order is fixed.
func deviceGroups(offers []offer) []*devicepb.DeviceGroup {
	var groups []*devicepb.DeviceGroup
	models := map[string][]offer{}
	for _, o := range offers {
		if o.inSlices() {
			groups = append(groups, o.group(o.Form.DeviceType(), o.GroupName(), o.facts(), o.detected()))
			continue
		}
		if o.Form != accel.Divided {
			models[o.DeviceID()] = append(models[o.DeviceID()], o)
		}
		groups = append(groups, o.group(accel.DescriptorType, o.DescriptorName(), o.facts(), nil))
	}
	for _, same := range models {
		var detected []*devicepb.DetectedDevice
		for _, o := range same {
			detected = append(detected, o.detected()...)
		}
		groups = append(groups, same[0].group(same[0].Form.DeviceType(), same[0].GroupName(), sharedFacts(same), detected))
	}
	slices.SortFunc(groups, func(a, b *devicepb.DeviceGroup) int {
		return cmp.Or(cmp.Compare(a.Vendor, b.Vendor), cmp.Compare(a.DeviceType, b.DeviceType), cmp.Compare(a.DeviceName, b.DeviceName))
	})
	return groups
}

func (o offer) group(kind, name string, facts attributes, detected []*devicepb.DetectedDevice) *devicepb.DeviceGroup {
	slices.SortFunc(detected, func(a, b *devicepb.DetectedDevice) int { return cmp.Compare(a.ID, b.ID) })
	return &devicepb.DeviceGroup{Vendor: string(o.Vendor), DeviceType: kind, DeviceName: name, Devices: detected, Attributes: facts}
}

// detected are the instances. A slice has no address of its own: its group says where it is, once.
func (o offer) detected() []*devicepb.DetectedDevice {
	h := o.health()
	ids := o.instances()
	out := make([]*devicepb.DetectedDevice, len(ids))
	for i, id := range ids {
		out[i] = &devicepb.DetectedDevice{ID: id, Healthy: h.OK, HealthDescription: h.Reason}
		if !o.inSlices() && o.PCIAddress != "" {
			out[i].HwLocality = &devicepb.DeviceLocality{PciBusId: o.PCIAddress}
		}
	}
	return out
}

// sameGroups tells whether nothing that Nomad would see has changed.
func sameGroups(a, b []*devicepb.DeviceGroup) bool {
	return slices.EqualFunc(a, b, func(x, y *devicepb.DeviceGroup) bool { return proto.Equal(x, y) })
}

func textAttr(s string) *structspb.Attribute {
	return &structspb.Attribute{Value: &structspb.Attribute_StringVal{StringVal: s}}
}

func intAttr(n int64, unit string) *structspb.Attribute {
	return &structspb.Attribute{Value: &structspb.Attribute_IntVal{IntVal: n}, Unit: unit}
}

func stateAttr(ok bool) *structspb.Attribute {
	if ok {
		return textAttr(accel.StateOK)
	}
	return textAttr(accel.StateBad)
}
