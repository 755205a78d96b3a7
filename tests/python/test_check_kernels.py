# SPDX-License-Identifier: Apache-2.0
"""What tests/kernels/check_kernels.py reads out of SASS."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "kernels"))
import check_kernels

SASS = """
.text.k:
        /*0000*/                   LDL R1, [R1] ;
.L_x_1:
        /*0010*/                   LDC R1, c[0x0][0x28] ;
        /*0020*/                   {outer}
.L_x_2:
        /*0030*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0040*/               @P4 BRA `(.L_x_5) ;
.L_x_6:
        /*0050*/                   {inner}
        /*0060*/              @!P1 BRA `(.L_x_2) ;
        /*0070*/               @P5 BRA `(.L_x_1);
.L_x_3:
        /*0080*/                   LDL R2, [R1] ;
        /*0090*/               @P2 BRA `(.L_x_3) ;
        /*00a0*/                   EXIT ;
.L_x_5:
        /*00b0*/                   {wait}
        /*00c0*/               @P6 BRA `(.L_x_5) ;
        /*00d0*/                   BRA `(.L_x_6) ;
        /*00e0*/                   STL [R1], R2 ;
"""


def sass(inner="NOP ;", wait="NOP ;", outer="NOP ;"):
    return SASS.replace("{inner}", inner).replace("{wait}", wait).replace("{outer}", outer)


def found(**lines):
    return check_kernels.local_in_consumer_loops(sass(**lines))


def test_local_memory_beside_the_consumers_loop_is_fine():
    assert found(inner="FADD R1, R2, R3 ;") == (0, 2)


def test_local_memory_in_the_consumers_loop_is_found():
    for inner in ("LDL R2, [R1+0x4] ;", "@!P3 STL.128 [R1], R4 ;", "@!UP0 LDL.LU R3, [R1] ;"):
        assert found(inner=inner) == (1, 2), inner
        assert found(outer=inner) == (1, 2), inner


def test_a_wait_that_lies_behind_the_end_is_of_the_loop():
    assert found(wait="LDL R2, [R1] ;") == (1, 2)


def test_loops():
    names, following = check_kernels.flow_of(sass())
    assert len(names) == 15
    inner = {3, 4, 5, 6, 11, 12, 13}
    loops = check_kernels.loops_of(following)
    assert sorted(map(sorted, loops)) == sorted(map(sorted, [inner | {1, 2, 7}, inner, {8, 9}, {11, 12}]))
