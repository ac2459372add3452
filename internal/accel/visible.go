package accel

import (
	"slices"
	"strconv"
	"strings"
)

// A visibleVar is an environment variable by which a brand's runtime or process library limits the cards that a
// task sees. Hidden is the value that hides every card.
type visibleVar struct {
	name   string
	value  visibleValue
	hidden string
}

// A visibleValue is what a variable lists. Container runtimes read the first kind on the host; process libraries read the
// others, and count the cards that they can reach: of the host, or of the container that the task is in.
type visibleValue int

const (
	hostIndex   visibleValue = iota // numbers of the host, also for a container: its runtime reads them
	cardUUID                        // the same everywhere
	reachIndex                      // numbers of what can be reached, from 0: in a container those of its cards
	sortedIndex                     // like reachIndex, and in ascending order only
	lowerIndex                      // numbers of what the brand's variable before it has left, from 0, on the host too
	untoldIndex                     // numbers of the host; nothing tells how cards are counted in a container
)

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
//
// How cards are counted in a container: Huawei's runtime API (aclrtGetPhyDevIdByUserDevId) has ASCEND_RT_VISIBLE_DEVICES
// list logical ids, which in a container are the container's own, and its reference of variables wants them ascending; with
// the host's the runtime refuses ("input data range [0-2)", gpustack issue 3352). AMD's page on GPU isolation has
// ROCR_VISIBLE_DEVICES list indices of what its runtime finds, which are the render nodes that the container has (its page on
// Docker), and HIP above it counts what ROCR_VISIBLE_DEVICES leaves: both with the number 1 leave nothing (ROCR-Runtime issue
// 155, pytorch pull 142292). Hygon's HIP is of the same make. Level Zero's ordinals are those of the devices that its driver
// reports to the process. Of the other brands nothing is published; gpustack/runtime sets their variables in privileged
// containers only.
var visibleVars = map[Vendor][]visibleVar{
	NVIDIA:    {{"NVIDIA_VISIBLE_DEVICES", cardUUID, "void"}, {"CUDA_VISIBLE_DEVICES", cardUUID, "-1"}},
	MThreads:  {{"MTHREADS_VISIBLE_DEVICES", hostIndex, "void"}, {"MUSA_VISIBLE_DEVICES", untoldIndex, "-1"}},
	Hygon:     {{"HYGON_VISIBLE_DEVICES", hostIndex, "void"}, {"HIP_VISIBLE_DEVICES", reachIndex, "-1"}},
	Cambricon: {{"CAMBRICON_VISIBLE_DEVICES", hostIndex, "void"}, {"MLU_VISIBLE_DEVICES", untoldIndex, "-1"}},
	Biren:     {{"BIREN_VISIBLE_DEVICES", hostIndex, "void"}, {"SUPA_VISIBLE_DEVICES", untoldIndex, "-1"}},
	Ascend:    {{"ASCEND_VISIBLE_DEVICES", hostIndex, "void"}, {"ASCEND_RT_VISIBLE_DEVICES", sortedIndex, "-1"}},
	Kunlunxin: {{"XPU_VISIBLE_DEVICES", untoldIndex, "-1"}, {"CUDA_VISIBLE_DEVICES", untoldIndex, "-1"}},
	AMD:       {{"AMD_VISIBLE_DEVICES", hostIndex, "void"}, {"ROCR_VISIBLE_DEVICES", reachIndex, "-1"}, {"HIP_VISIBLE_DEVICES", lowerIndex, "-1"}},
	MetaX:     {{"METAX_VISIBLE_DEVICES", hostIndex, "void"}, {"CUDA_VISIBLE_DEVICES", untoldIndex, "-1"}},
	Iluvatar:  {{"IX_VISIBLE_DEVICES", hostIndex, "void"}, {"CUDA_VISIBLE_DEVICES", untoldIndex, "-1"}},
	Enflame:   {{"ENFLAME_VISIBLE_DEVICES", hostIndex, "void"}, {"TOPS_VISIBLE_DEVICES", untoldIndex, "-1"}},
	Intel:     {{"ZE_AFFINITY_MASK", reachIndex, noOrdinal}},
}

// IsVisibleVar tells whether a variable limits the cards that tasks see, of any brand.
func IsVisibleVar(name string) bool {
	for _, variables := range visibleVars {
		if slices.ContainsFunc(variables, func(v visibleVar) bool { return v.name == name }) {
			return true
		}
	}
	return false
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
	return visibleEnv(cards, names, false)
}

// VisibleEnvInside is VisibleEnvAs for a container in which the granted cards are and no others: process libraries count
// those. Where nothing tells how one counts, its variable must not be there at all, and it takes what is there: these are
// the names in unset.
func VisibleEnvInside(cards []Card, names map[string]string) (env map[string]string, unset []string) {
	env = visibleEnv(cards, names, true)
	for name, value := range env {
		if value == "" {
			delete(env, name)
			unset = append(unset, name)
		}
	}
	slices.Sort(unset)
	return env, unset
}

func visibleEnv(cards []Card, names map[string]string, inside bool) map[string]string {
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
		show(env, granted[v], names, inside)
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
	show(env, cards, nil, false)
	return env
}

// show sets the variables of the brand of the cards; to nothing where one must not be there, unless another brand has it.
func show(env map[string]string, cards []Card, names map[string]string, inside bool) {
	if len(cards) == 0 {
		return
	}
	for _, variable := range visibleVars[cards[0].Vendor] {
		ids, known := variable.value.list(cards, names, inside)
		switch {
		case known:
			env[variable.name] = strings.Join(ids, ",")
		case inside && variable.value == untoldIndex && env[variable.name] == variable.hidden:
			env[variable.name] = ""
		}
	}
}

// list is what a variable lists of cards; known is false when one of them has no number.
func (v visibleValue) list(cards []Card, names map[string]string, inside bool) (ids []string, known bool) {
	counted := inside && (v == reachIndex || v == sortedIndex) || v == lowerIndex
	var numbers []int
	for i, c := range cards {
		switch name := names[c.UUID]; {
		case counted && c.Index >= 0: // one without a number may be a part of a card that the container reaches whole
			ids = append(ids, strconv.Itoa(i))
		case name != "":
			ids = append(ids, name)
		case v == cardUUID:
			ids = append(ids, c.UUID)
		case c.Index >= 0 && (!inside || v != untoldIndex):
			ids = append(ids, strconv.Itoa(c.Index))
			numbers = append(numbers, c.Index)
		}
	}
	if v == sortedIndex && len(numbers) == len(cards) {
		slices.Sort(numbers)
		for i, n := range numbers {
			ids[i] = strconv.Itoa(n)
		}
	}
	return ids, len(ids) == len(cards)
}
