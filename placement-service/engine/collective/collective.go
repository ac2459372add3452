package collective

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// Framework is how the members start their processes.
type Framework string

// The frameworks. The first three take the variables of PyTorch; what torchrun is to start it reads from PET_ ones.
const (
	DDP       Framework = "ddp"
	FSDP      Framework = "fsdp"
	DeepSpeed Framework = "deepspeed"
	MPI       Framework = "mpi"
)

var frameworks = []Framework{DDP, FSDP, DeepSpeed, MPI}

// Card is one card of a member, in the order in which the member's processes take them.
type Card struct {
	Index int    // on its node
	NIC   string // the nearest RDMA device, such as mlx5_0; empty when not known
}

// Member is one allocation of a gang. It runs one process for each of its cards.
type Member struct {
	Node    string // what tells nodes apart in a rank table; the node's id
	Address string // where the others reach it; empty when that is known only when it runs
	Cards   []Card
}

// Gang is a placed gang. Members are in the order of their ranks.
type Gang struct {
	ID        string // tells one gang from another that meets at the same address
	Attempt   int    // counts restarts, so that processes of the last attempt do not join this one
	Framework Framework
	Vendor    accel.Vendor
	Members   []Member
	Min       int    // the fewest members it may run with; 0 stands for all
	Most      int    // how many it may come to have; 0 for no more than it has
	Port      int    // of the first member, for the rendezvous; 0 when that is known only when it runs
	Interface string // network interface that the members talk over; empty leaves it to the library
}

// Setting is what one member gets.
type Setting struct {
	Env   map[string]string
	Files map[string]string // by path below the task's local folder
}

// Files that a setting may have.
const (
	HostFile  = "heteroflow/hostfile"
	RankTable = "heteroflow/hccl.json"
)

// AddressOf is the placeholder for the address of a member: of its network namespace where it has one, else its node's.
func AddressOf(member int) string { return fmt.Sprintf("${heteroflow.gang.%d.address}", member) }

// PortOf is the placeholder for the port of a member that its group labels "master".
func PortOf(member int) string { return fmt.Sprintf("${heteroflow.gang.%d.port}", member) }

// CardAddressOf is the placeholder for the address of a card's own network interface, which Ascend's NPUs have; the
// card is known by its index on the member's node.
func CardAddressOf(member, index int) string {
	return fmt.Sprintf("${heteroflow.gang.%d.card.%d.address}", member, index)
}

// Settings says what each member gets, in the order of the members. Values may hold the placeholders, which the driver
// fills when all members have come to the start; NOMAD_TASK_DIR is Nomad's own.
func Settings(g Gang) ([]Setting, error) {
	if err := g.check(); err != nil {
		return nil, err
	}
	out := make([]Setting, len(g.Members))
	first := 0
	for i := range g.Members {
		s := Setting{Env: map[string]string{}, Files: map[string]string{}}
		g.ranks(&s, i, first)
		if g.Framework == DeepSpeed || g.Framework == MPI {
			g.hosts(&s)
		}
		if library := libraries[g.Vendor]; library != nil {
			library(&g, &s, i)
		}
		out[i] = s
		first += len(g.Members[i].Cards)
	}
	return out, nil
}

func (g *Gang) check() error {
	if len(g.Members) == 0 {
		return fmt.Errorf("gang %s has no members", g.ID)
	}
	if !slices.Contains(frameworks, g.Framework) {
		return fmt.Errorf("there is no framework %q: write ddp, fsdp, deepspeed or mpi", g.Framework)
	}
	if g.Min < 0 || g.Min > len(g.Members) {
		return fmt.Errorf("gang %s of %d members may run with %d: write a number up to %d, or none for all", g.ID, len(g.Members), g.Min, len(g.Members))
	}
	for i := range g.Members {
		if len(g.Members[i].Cards) == 0 {
			return fmt.Errorf("member %d of gang %s has no card: each runs a process for each of its cards", i, g.ID)
		}
	}
	return nil
}

func (g *Gang) address(member int) string {
	if a := g.Members[member].Address; a != "" {
		return a
	}
	return AddressOf(member)
}

func (g *Gang) port() string {
	if g.Port != 0 {
		return strconv.Itoa(g.Port)
	}
	return PortOf(0)
}

func (g *Gang) world() int {
	n := 0
	for i := range g.Members {
		n += len(g.Members[i].Cards)
	}
	return n
}

// ranks are the variables of PyTorch's env:// rendezvous, with which a member of one card can start its process as it
// is, and torchrun's own, with which a launcher starts one process for each card and gives them their ranks.
//
// Sources: pytorch.org, distributed (environment variable initialization) and elastic/run (definitions, environment
// variables); torch/distributed/run.py reads each option from PET_ and its name. NODE_RANK is Lightning's.
func (g *Gang) ranks(s *Setting, member, first int) {
	cards := len(g.Members[member].Cards)
	set := func(name string, value any) { s.Env[name] = fmt.Sprint(value) }
	set("WORLD_SIZE", g.world())
	set("RANK", first)
	set("LOCAL_RANK", 0)
	set("LOCAL_WORLD_SIZE", cards)
	set("NODE_RANK", member)
	set("GROUP_RANK", member)
	set("MASTER_ADDR", g.address(0))
	set("MASTER_PORT", g.port())
	if g.Framework == MPI {
		return
	}
	set("PET_NPROC_PER_NODE", cards)
	set("PET_RDZV_ID", fmt.Sprintf("%s-%d", g.ID, g.Attempt))
	if most := max(g.Most, len(g.Members)); g.Min > 0 && g.Min < most {
		set("PET_NNODES", fmt.Sprintf("%d:%d", g.Min, most))
		set("PET_RDZV_BACKEND", "c10d")
		set("PET_RDZV_ENDPOINT", g.address(0)+":"+g.port())
		return
	}
	set("PET_NNODES", len(g.Members))
	set("PET_NODE_RANK", member)
	set("PET_MASTER_ADDR", g.address(0))
	set("PET_MASTER_PORT", g.port())
}

// hosts is the list of hosts that DeepSpeed's launcher and Open MPI read in the same form. DeepSpeed needs no ssh with
// --no_ssh and --node_rank=$NODE_RANK; mpirun does. Sources: deepspeed.ai, getting started (resource configuration);
// docs.open-mpi.org, the --hostfile option; the variable is what kubeflow/mpi-operator sets for Open MPI.
func (g *Gang) hosts(s *Setting) {
	var b strings.Builder
	for i := range g.Members {
		fmt.Fprintf(&b, "%s slots=%d\n", g.address(i), len(g.Members[i].Cards))
	}
	s.Files[HostFile] = b.String()
	if g.Framework == MPI {
		s.Env["OMPI_MCA_orte_default_hostfile"] = "${NOMAD_TASK_DIR}/" + HostFile
	}
}
