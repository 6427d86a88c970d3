package nodes

import (
	"strconv"
	"strings"
	"testing"
)

func environment(vars string) Environment {
	m := map[string]string{}
	for _, v := range strings.Fields(vars) {
		name, value, _ := strings.Cut(v, "=")
		m[name] = value
	}
	host := m["HOST"]
	if host == "" {
		host = "gpu-17"
	}
	return Environment{Getenv: func(name string) string { return m[name] }, Hostname: host}
}

const step = "SLURM_JOB_ID=4711 SLURM_JOB_NUM_NODES=8 SLURM_STEP_ID=3 SLURM_STEP_NUM_NODES=4 SLURM_NODEID=2 "

func TestResolve(t *testing.T) {
	for _, c := range []struct {
		name string
		asks Asked
		env  string
		want Identity // but for From
		err  string
	}{
		{"nothing", Asked{}, "", Identity{Nodes: 1}, ""},
		{"one", Asked{Nodes: "1"}, step, Identity{Nodes: 1}, ""},
		{"all said", Asked{"4", "1", "k"}, "", Identity{Nodes: 4, Node: 1, Join: "k"}, ""},
		{"all said, and another found", Asked{"2", "1", "k"}, step, Identity{Nodes: 2, Node: 1, Join: "k"}, ""},
		{"auto, and nothing there", Asked{Nodes: "auto"}, "", Identity{}, "nothing says how many nodes there are: give --nodes"},
		{"a node alone", Asked{Node: "1"}, step, Identity{}, "--node and --join are for several nodes"},
		{"a key alone", Asked{Join: "k"}, "", Identity{}, "--node and --join are for several nodes"},
		{"no number", Asked{Nodes: "some"}, "", Identity{}, `"some" is neither`},
		{"no nodes", Asked{Nodes: "0"}, "", Identity{}, `"0" is neither`},
		{"no node", Asked{Nodes: "2", Node: "-1"}, "", Identity{}, `"-1" is no number`},
		{"too high", Asked{"2", "2", "k"}, "", Identity{}, "node 2 of 2: nodes are numbered from 0 to 1"},
		{"one, too high", Asked{Nodes: "1", Node: "1"}, "", Identity{}, "node 1 of 1"},
		{"odd key", Asked{"2", "0", "a\nb"}, "", Identity{}, "no join key"},
		{"long key", Asked{"2", "0", strings.Repeat("k", 201)}, "", Identity{}, "no join key"},

		{"slurm, not asked for", Asked{}, step, Identity{Nodes: 1}, ""},
		{"slurm", Asked{Nodes: "auto"}, step, Identity{Nodes: 4, Node: 2, Join: "slurm-4711.0"}, ""},
		{"slurm, requeued", Asked{Nodes: "auto"}, step + "SLURM_RESTART_COUNT=3", Identity{Nodes: 4, Node: 2, Join: "slurm-4711.3"}, ""},
		{"slurm, a key of one's own", Asked{Nodes: "auto", Join: "k"}, step, Identity{Nodes: 4, Node: 2, Join: "k"}, ""},
		{"slurm, another number", Asked{Nodes: "8"}, step, Identity{}, "--nodes says 8, and Slurm"},
		{"slurm, another number and the node", Asked{Nodes: "8", Node: "5"}, step, Identity{Nodes: 8, Node: 5, Join: "slurm-4711.0"}, ""},
		{"slurm, batch script", Asked{Nodes: "auto"}, "SLURM_JOB_ID=1 SLURM_JOB_NUM_NODES=4 SLURM_NODEID=0", Identity{}, "nothing says which node this is (Slurm (SLURM_JOB_ID, SLURM_STEP_NUM_NODES, SLURM_NODEID): this is not started with srun"},
		{"slurm, interactive", Asked{Nodes: "auto"}, "SLURM_JOB_ID=1 SLURM_JOB_NUM_NODES=4 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_NODES=1 SLURM_NODEID=0", Identity{}, "not started with srun"},
		{"slurm, batch script of one node", Asked{Nodes: "auto"}, "SLURM_JOB_ID=1 SLURM_NNODES=1 SLURM_NODEID=0", Identity{Nodes: 1}, ""},
		{"slurm, heterogeneous", Asked{Nodes: "auto"}, step + "SLURM_HET_SIZE=2", Identity{}, "heterogeneous"},
		{"slurm, array", Asked{Nodes: "auto"}, step + "SLURM_ARRAY_JOB_ID=4700 SLURM_ARRAY_TASK_ID=11", Identity{Nodes: 4, Node: 2, Join: "slurm-4711.0"}, ""},

		{"torchrun", Asked{Nodes: "auto"}, "GROUP_RANK=1 GROUP_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=j7 TORCHELASTIC_RESTART_COUNT=1", Identity{Nodes: 2, Node: 1, Join: "torch-j7"}, ""},
		{"torchrun without an id", Asked{Nodes: "auto"}, "GROUP_RANK=1 GROUP_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none", Identity{}, "it has no --rdzv-id): give --join"},
		{"torchrun without an id under slurm", Asked{Nodes: "auto"}, "GROUP_RANK=2 GROUP_WORLD_SIZE=4 TORCHELASTIC_RUN_ID=none " + step, Identity{Nodes: 4, Node: 2, Join: "slurm-4711.0"}, ""},
		{"torchrun against slurm, number", Asked{Nodes: "auto"}, "GROUP_RANK=2 GROUP_WORLD_SIZE=3 " + step, Identity{}, "says 3 nodes and Slurm"},
		{"torchrun against slurm, node", Asked{Nodes: "auto"}, "GROUP_RANK=0 GROUP_WORLD_SIZE=4 " + step, Identity{}, "says node 0 and Slurm"},
		{"torchrun against slurm, said", Asked{"4", "3", ""}, "GROUP_RANK=0 GROUP_WORLD_SIZE=4 TORCHELASTIC_RUN_ID=x " + step, Identity{Nodes: 4, Node: 3, Join: "torch-x"}, ""},

		{"PyTorchJob master", Asked{Nodes: "auto"}, "PET_NNODES=3 PET_NODE_RANK=0 PET_MASTER_ADDR=localhost RANK=0 WORLD_SIZE=3 HOST=mnist-master-0", Identity{Nodes: 3, Node: 0, Join: "pod-mnist"}, ""},
		{"PyTorchJob worker", Asked{Nodes: "auto"}, "PET_NNODES=3 PET_MASTER_ADDR=mnist-master-0 RANK=2 WORLD_SIZE=3 HOST=mnist-worker-1", Identity{Nodes: 3, Node: 2, Join: "pod-mnist"}, ""},
		{"TrainJob", Asked{Nodes: "auto"}, "PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=tj-node-0-0.tj JOB_COMPLETION_INDEX=1 HOST=tj-node-0-1", Identity{Nodes: 2, Node: 1, Join: "pod-tj"}, ""},
		{"PyTorchJob on the host's network", Asked{Nodes: "auto"}, "PET_NNODES=3 PET_NODE_RANK=1 MASTER_ADDR=10.0.0.9", Identity{Nodes: 3, Node: 1, Join: "pod-10.0.0.9"}, ""},
		{"PyTorchJob, elastic", Asked{Nodes: "auto"}, "PET_NNODES=2:4 HOST=e-worker-1", Identity{}, "may change (2:4)"},

		{"MPI, one node after the other", Asked{Nodes: "auto"}, "OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_RANK=8 OMPI_COMM_WORLD_LOCAL_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=0 PMIX_NAMESPACE=p-1", Identity{Nodes: 2, Node: 1, Join: "mpi-p-1"}, ""},
		{"MPI, round", Asked{Nodes: "auto", Join: "k"}, "OMPI_COMM_WORLD_SIZE=6 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=1", Identity{Nodes: 2, Node: 1, Join: "k"}, ""},
		{"MPI, unequal", Asked{Nodes: "auto", Join: "k"}, "OMPI_COMM_WORLD_SIZE=7 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=1", Identity{}, "equally many"},
		{"MPI, neither", Asked{Nodes: "auto", Join: "k"}, "OMPI_COMM_WORLD_SIZE=6 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=2", Identity{}, "do not tell"},

		{"indexed Job", Asked{Nodes: "4"}, "JOB_COMPLETION_INDEX=3 HOST=train-3", Identity{Nodes: 4, Node: 3, Join: "job-train"}, ""},
		{"indexed Job, auto", Asked{Nodes: "auto"}, "JOB_COMPLETION_INDEX=3 HOST=train-3", Identity{}, "does not say how many pods"},
		{"JobSet", Asked{Nodes: "4"}, "JOB_COMPLETION_INDEX=3 JOBSET_NAME=s REPLICATED_JOB_NAME=w JOB_INDEX=0 RESTART_ATTEMPT=2 HOST=s-w-0-3", Identity{Nodes: 4, Node: 3, Join: "jobset-s-w.2"}, ""},
		{"JobSet of several Jobs", Asked{Nodes: "8"}, "JOB_COMPLETION_INDEX=3 JOBSET_NAME=s JOB_INDEX=1", Identity{}, "one of several Jobs"},

		{"Ray", Asked{Nodes: "auto"}, "RAY_JOB_ID=02000000 NODE_RANK=1 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4", Identity{Nodes: 2, Node: 1, Join: "ray-02000000"}, ""},
		{"a rank alone says nothing", Asked{Nodes: "auto"}, "RANK=1 WORLD_SIZE=8 NODE_RANK=1", Identity{}, "nothing says how many nodes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Resolve(c.asks, environment(c.env))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("%+v %v, want the error %q", got, err, c.err)
				}
				return
			}
			from := got.From
			got.From = ""
			if err != nil || got != c.want {
				t.Errorf("%+v %v, want %+v", got, err, c.want)
			}
			if (got.Nodes > 1 || c.asks == Asked{} && c.env != "") != (from != "") {
				t.Errorf("it is from %q", from)
			}
		})
	}
}

// Every rank of an MPI job finds the node that it is on, whichever way the
// ranks were laid out, or says that it cannot tell.
func TestMPILayouts(t *testing.T) {
	for nodes := 1; nodes <= 9; nodes++ {
		for per := 1; per <= 9; per++ {
			for rank := range nodes * per {
				for node, local := range map[int]int{rank / per: rank % per, rank % nodes: rank / nodes} {
					got, ok := mpi(environment("OMPI_COMM_WORLD_SIZE=" + strconv.Itoa(nodes*per) + " OMPI_COMM_WORLD_RANK=" + strconv.Itoa(rank) +
						" OMPI_COMM_WORLD_LOCAL_SIZE=" + strconv.Itoa(per) + " OMPI_COMM_WORLD_LOCAL_RANK=" + strconv.Itoa(local)))
					if !ok || got.nodes != nodes || got.node >= 0 && got.node != node {
						t.Fatalf("%d nodes of %d ranks, rank %d of node %d: %+v", nodes, per, rank, node, got)
					}
				}
			}
		}
	}
}
