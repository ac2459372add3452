package amd

import (
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/topology"
)

// links reads which cards are connected by xGMI.
func links(tool string, call brand.Call) (topology.Graph, error) {
	args := []string{"--showtopo"}
	if strings.HasPrefix(tool, "amd-smi") {
		args = []string{"topology"}
	}
	out, err := call(args...)
	if err != nil {
		return topology.Graph{}, err
	}
	return topology.ParseROCm(out)
}
