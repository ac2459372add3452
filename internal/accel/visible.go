package accel

import (
	"strconv"
	"strings"
)

// A visibleVar is an environment variable by which a brand's runtime or process library limits the cards that a
// task sees. Hidden is the value that hides every card.
type visibleVar struct {
	name   string
	byUUID bool // value lists UUIDs; display indices otherwise
	hidden string
}

// The variables of each brand. Container runtimes read the first kind, the process libraries the second; both
// are set, so that the same task is bound with either runtime. Source: makers' documentation as collected in the
// vendor fact tables; NVIDIA's container toolkit documents "void" as "no GPU, as if not an NVIDIA container".
// A process library takes -1 as "no device", also where it would take an empty value for "not set".
//
// Of the last four brands: MetaX's MACA reads CUDA_VISIBLE_DEVICES (so does Ray's accelerator manager for it), the name
// METAX_VISIBLE_DEVICES is gpustack/runtime's; Deep-Spark/ix-device-plugin sets IX_VISIBLE_DEVICES for Iluvatar's
// container runtime; Enflame's container toolkit reads ENFLAME_VISIBLE_DEVICES and its vLLM platform names
// TOPS_VISIBLE_DEVICES; Intel has only Level Zero's ZE_AFFINITY_MASK (core programming guide, "Affinity Mask"), which
// lists ordinals, and an ordinal that no device has selects none. None of the four documents a value that hides all:
// theirs are chosen by what the other brands' runtimes and libraries take.
var visibleVars = map[Vendor][]visibleVar{
	NVIDIA:    {{"NVIDIA_VISIBLE_DEVICES", true, "void"}, {"CUDA_VISIBLE_DEVICES", true, "-1"}},
	MThreads:  {{"MTHREADS_VISIBLE_DEVICES", false, "void"}, {"MUSA_VISIBLE_DEVICES", false, "-1"}},
	Hygon:     {{"HYGON_VISIBLE_DEVICES", false, "void"}, {"HIP_VISIBLE_DEVICES", false, "-1"}},
	Cambricon: {{"CAMBRICON_VISIBLE_DEVICES", false, "void"}, {"MLU_VISIBLE_DEVICES", false, "-1"}},
	Biren:     {{"BIREN_VISIBLE_DEVICES", false, "void"}, {"SUPA_VISIBLE_DEVICES", false, "-1"}},
	Ascend:    {{"ASCEND_VISIBLE_DEVICES", false, "void"}, {"ASCEND_RT_VISIBLE_DEVICES", false, "-1"}},
	Kunlunxin: {{"XPU_VISIBLE_DEVICES", false, "-1"}, {"CUDA_VISIBLE_DEVICES", false, "-1"}},
	AMD:       {{"AMD_VISIBLE_DEVICES", false, "void"}, {"ROCR_VISIBLE_DEVICES", false, "-1"}, {"HIP_VISIBLE_DEVICES", false, "-1"}},
	MetaX:     {{"METAX_VISIBLE_DEVICES", false, "void"}, {"CUDA_VISIBLE_DEVICES", false, "-1"}},
	Iluvatar:  {{"IX_VISIBLE_DEVICES", false, "void"}, {"CUDA_VISIBLE_DEVICES", false, "-1"}},
	Enflame:   {{"ENFLAME_VISIBLE_DEVICES", false, "void"}, {"TOPS_VISIBLE_DEVICES", false, "-1"}},
	Intel:     {{"ZE_AFFINITY_MASK", false, noOrdinal}},
}

// noOrdinal is an ordinal of Level Zero that no machine has. It is no negative number, since nothing says that one is
// read as a number at all.
const noOrdinal = "999"

// VisibleEnv is the environment that lets a task see exactly the given cards: every variable of every brand,
// either listing the granted cards of that brand in the order given or hiding all. Set it last, after the job's
// env, templates and image defaults. Where two brands read one variable, the brand that was granted cards wins.
func VisibleEnv(cards []Card) map[string]string { return VisibleEnvAs(cards, nil) }

// VisibleEnvAs is VisibleEnv with another name for some cards, by UUID: what a part of a card is shown by, such as the UUID
// of a MIG device.
func VisibleEnvAs(cards []Card, names map[string]string) map[string]string {
	env := map[string]string{}
	granted := map[Vendor][]Card{}
	for _, c := range cards {
		granted[c.Vendor] = append(granted[c.Vendor], c)
	}
	for _, v := range Vendors() {
		for _, hide := range visibleVars[v] {
			if _, set := env[hide.name]; !set {
				env[hide.name] = hide.hidden
			}
		}
	}
	for _, v := range Vendors() {
		show(env, granted[v], names)
	}
	return env
}

// OwnEnv shows cards of one brand by that brand's own variables, and hides nothing. It is for drivers that know nothing of
// grants, such as Nomad's own. A card whose number is not known cannot be named where numbers count: such a variable is
// left out rather than show another card. A card that is to be divided first is not shown at all.
func OwnEnv(cards []Card) map[string]string {
	env := map[string]string{}
	for _, c := range cards {
		if c.Form == MIG {
			return env
		}
	}
	show(env, cards, nil)
	return env
}

// show sets the variables of the brand of the cards.
func show(env map[string]string, cards []Card, names map[string]string) {
	if len(cards) == 0 {
		return
	}
	for _, variable := range visibleVars[cards[0].Vendor] {
		ids := make([]string, 0, len(cards))
		for _, c := range cards {
			switch {
			case names[c.UUID] != "":
				ids = append(ids, names[c.UUID])
			case variable.byUUID:
				ids = append(ids, c.UUID)
			case c.Index >= 0:
				ids = append(ids, strconv.Itoa(c.Index))
			}
		}
		if len(ids) == len(cards) {
			env[variable.name] = strings.Join(ids, ",")
		}
	}
}
