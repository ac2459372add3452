package collective

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// libraries set what each brand's communication library can be told of the network. A brand that is not here has a
// library of which no such variable is published (Cambricon's CNCL, Moore Threads' MCCL, Biren, Iluvatar, Enflame,
// Intel): its members get those of the framework alone, and the library finds its own way.
var libraries = map[accel.Vendor]func(g *Gang, s *Setting, member int){
	accel.NVIDIA:    nccl,
	accel.AMD:       nccl, // RCCL keeps the names: rocm.docs.amd.com, RCCL environment variables
	accel.Hygon:     nccl, // DTK's library is RCCL; not tried on hardware
	accel.Ascend:    hccl,
	accel.Kunlunxin: bkcl,
	accel.MetaX:     mccl,
}

// nics are the RDMA devices of a member's cards in their order, nil when one is not known or all members share a node.
func (g *Gang) nics(member int) []string {
	if g.oneNode() {
		return nil
	}
	var out []string
	for _, c := range g.Members[member].Cards {
		if c.NIC == "" {
			return nil
		}
		out = append(out, c.NIC)
	}
	return out
}

func (g *Gang) oneNode() bool {
	return !slices.ContainsFunc(g.Members, func(m Member) bool { return m.Node != g.Members[0].Node })
}

// each is a list without what was there before.
func each(names []string) string {
	names = slices.Clone(names)
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ",")
}

// gloo is PyTorch's way over the processor, beside every library: pytorch.org, distributed (common environment
// variables).
func (g *Gang) gloo(s *Setting) {
	if g.Interface != "" {
		s.Env["GLOO_SOCKET_IFNAME"] = g.Interface
	}
}

// Source: docs.nvidia.com, NCCL user guide, environment variables: "=" asks for the exact names.
func nccl(g *Gang, s *Setting, member int) {
	g.gloo(s)
	if g.Interface != "" {
		s.Env["NCCL_SOCKET_IFNAME"] = "=" + g.Interface
	}
	if nics := g.nics(member); nics != nil {
		s.Env["NCCL_IB_HCA"] = "=" + each(nics)
	}
}

// Source: developer.metax-tech.com, MCCL, environment variables (several machines).
func mccl(g *Gang, s *Setting, member int) {
	g.gloo(s)
	if nics := g.nics(member); nics != nil {
		s.Env["MCCL_IB_HCA"] = each(nics)
	}
}

// Source: PaddlePaddle/FastDeploy, docs/usage/kunlunxin_xpu_deployment.md: one network card for each XPU, in their order.
func bkcl(g *Gang, s *Setting, member int) {
	g.gloo(s)
	if nics := g.nics(member); nics != nil {
		s.Env["BKCL_ENABLE_XDR"] = "1"
		s.Env["BKCL_RDMA_NICS"] = strings.Join(nics, ",")
	}
}

// Source: hiascend.com, HCCL, environment variables (HCCL_IF_IP comes before HCCL_SOCKET_IFNAME) and rank table. PyTorch
// does without the table, which is there for what reads RANK_TABLE_FILE; the variable is left to the job, since HCCL
// takes the table or the variables, not both.
func hccl(g *Gang, s *Setting, member int) {
	g.gloo(s)
	if g.Interface != "" {
		s.Env["HCCL_SOCKET_IFNAME"] = "=" + g.Interface
	} else {
		s.Env["HCCL_IF_IP"] = g.address(member)
	}
	s.Files[RankTable] = g.rankTable()
}

// rankTable is HCCL's table of version 1.0, of Atlas training products and A2: numbers are text in it. Members of one
// node are one server. A3 wants version 1.2 with super pods, which nothing here knows.
// Source: hiascend.com, MindCluster, description of hccl.json.
func (g *Gang) rankTable() string {
	type device struct {
		ID   string `json:"device_id"`
		IP   string `json:"device_ip"`
		Rank string `json:"rank_id"`
	}
	type server struct {
		ID      string   `json:"server_id"`
		HostIP  string   `json:"host_ip"`
		Devices []device `json:"device"`
	}
	table := struct {
		Status  string   `json:"status"`
		Version string   `json:"version"`
		Count   string   `json:"server_count"`
		Servers []server `json:"server_list"`
	}{Status: "completed", Version: "1.0"}
	of := map[string]int{}
	rank := 0
	for i, m := range g.Members {
		at, ok := of[m.Node]
		if !ok {
			at = len(table.Servers)
			of[m.Node] = at
			table.Servers = append(table.Servers, server{ID: m.Node, HostIP: g.address(i)})
		}
		for _, c := range m.Cards {
			table.Servers[at].Devices = append(table.Servers[at].Devices, device{
				ID: strconv.Itoa(c.Index), IP: CardAddressOf(i, c.Index), Rank: strconv.Itoa(rank),
			})
			rank++
		}
	}
	table.Count = strconv.Itoa(len(table.Servers))
	text, err := json.MarshalIndent(table, "", "  ")
	if err != nil {
		panic(err) // text in, text out
	}
	return string(text) + "\n"
}
