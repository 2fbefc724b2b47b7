#!/usr/bin/env python3
"""Tests of the model: no card, no compiler. Run: python3 bench/model/test_model.py"""
import dataclasses
import unittest

import models
import predict
import products
import sass
import simulate
import steps
from cards import CARDS


def instruction(text: str, stall: int = 1, sets: int = 7, waits: int = 0) -> sass.Instruction:
    return sass.Instruction(text, (stall | sets << 5 | waits << 11) << (105 - 64))


class Model(unittest.TestCase):
    def test_measured_times_are_predicted(self) -> None:
        """Guards against rates, counts or rules under which the model no longer explains Hopper."""
        for row in predict.measured():
            self.assertTrue(predict.near(row), f"{row}: {predict.predicted_us(row):.0f} us")

    def test_a_wrong_time_is_noticed(self) -> None:
        """Guards against a comparison that accepts everything."""
        row = predict.measured()[0]
        self.assertFalse(predict.near(row | {"us": 1.5 * row["us"]}))
        self.assertFalse(predict.near(row | {"us": row["us"] / 1.5}))

    def test_slower_code_is_predicted_slower(self) -> None:
        """Guards against a bound that takes no part: each is what binds one of these."""
        kernel, card = products.hopper_kernels(sass.load(predict.COUNTS))["bf16"], CARDS["h200"]

        def us(kernel: products.Kernel, tokens: int) -> float:
            return products.predict(kernel, card, 17408, 5120, tokens).us

        chained = {n: dataclasses.replace(loop, chain=2 * loop.chain) for n, loop in kernel.loops.items()}
        longer = {n: dataclasses.replace(loop, mmas=2 * loop.mmas) for n, loop in kernel.loops.items()}
        self.assertGreater(us(dataclasses.replace(kernel, loops=chained), 128), 1.2 * us(kernel, 128))
        self.assertGreater(us(dataclasses.replace(kernel, loops=longer), 2048), 1.6 * us(kernel, 2048))
        slow = dataclasses.replace(CARDS["rtx5090"], l2_bytes=8.0)
        tiles = predict.blackwell().store
        fast = products.fastest(tiles, CARDS["rtx5090"], 17408, 5120, 2048).us
        self.assertGreater(products.fastest(tiles, slow, 17408, 5120, 2048).us, 1.3 * fast)

    def test_general_steps_count(self) -> None:
        """Guards against attention and delta rule of Blackwell that no longer follow the built code."""
        general, card = predict.general(), CARDS["rtx5090"]

        def slower(loop: sass.Loop) -> sass.Loop:
            return dataclasses.replace(loop, clocks={name: [2 * n for n in clocks] for name, clocks in loop.clocks.items()})

        before = models.general_delta_rule_us(card, general.scan, 16384, 16, 48)
        self.assertGreater(models.general_delta_rule_us(card, slower(general.scan), 16384, 16, 48), 1.2 * before)
        for size, loop in general.attend.items():
            us = models.general_attention_us(card, loop, 16384, 0, 24, 4, size)
            products = 2 * 2 * 16384**2 / 2 * 24 * size / (card.peak_tflops("bf16") * 1e6)
            self.assertGreater(us, products)
            self.assertLess(us, 2 * products)
            self.assertGreater(models.general_attention_us(card, slower(loop), 16384, 0, 24, 4, size), 1.8 * us)

    def test_last_rounds_are_halved(self) -> None:
        """Guards against rounds of blocks that leave a card idle unseen: 384 tiles on 188 places are three."""
        self.assertEqual(models.rounds_of(384, 0, 188), 3)
        self.assertAlmostEqual(models.rounds_of(376, 16, 188), 2.6)
        self.assertAlmostEqual(models.rounds_of(0, 48, 170), 0.6)
        self.assertAlmostEqual(models.rounds_of(168, 176, 170), 2.2)

    def test_fp4_tensor_cores_are_busy(self) -> None:
        """Guards against an FP4 kernel whose stored loop cannot reach what is wanted of it."""
        time = products.fastest(predict.blackwell().store, CARDS["rtx5090"], 17408, 5120, 2048)
        self.assertGreaterEqual(time.utilisation, 0.75)

    def test_gate_and_up_in_one_are_predicted_faster(self) -> None:
        """Guards against a gated kernel that the model takes for another."""
        kernels = predict.blackwell()
        times = [products.fastest(which, CARDS["rtx5090"], 34816, 5120, 2048).us
                 for which in (kernels.gated, kernels.store)]
        self.assertLess(times[0], times[1])


class MachineCode(unittest.TestCase):
    def test_clocks_of_a_warp(self) -> None:
        """Guards against misread stalls, scoreboards and places of products."""
        load, use = instruction("LDS R0, [R1]", stall=2, sets=3), instruction("IADD3 R2, R0", stall=5, waits=1 << 3)
        self.assertEqual(sass.chain_of([load, use]), 33 + 5)
        self.assertEqual(sass.chain_of([load, instruction("IADD3 R2, R3", stall=5)]), 7)
        self.assertEqual(sass.chain_of([instruction("OMMA.SF R0", stall=2)] * 4), 0)

    def test_innermost_loop(self) -> None:
        """Guards against counting a loop over tiles as a step, and loader warps as none."""
        code = [instruction(text) for text in (
            "UTMALDG [UR4]", "STS [R0], R1", "BRA `(.L_x_0)", "MOV R1, R2", "LDS.64 R2, [R3]",
            "HGMMA.64x64x16.F32.BF16 R24, R8, gdesc[UR4]", "@P0 BRA `(.L_x_2)", "@P1 BRA `(.L_x_1)")]
        loops = list(sass.main_loops(code, {".L_x_0": 0, ".L_x_1": 3, ".L_x_2": 4}))
        self.assertEqual(len(loops), 1)
        self.assertEqual((loops[0].instructions, loops[0].mmas, loops[0].loader), (3, 1, 3))
        self.assertEqual(loops[0].shared, {"LDS.64": 1})

    def test_names(self) -> None:
        """Guards against two kernels under one name in counts.json."""
        name = "_ZN7tessera4cuda8sm90_fp86kernelILi256ELb1EEEvNS0_6hopper4MapsENS1_8OperandsE"
        self.assertEqual(sass.short_name(name), "sm90_fp8<256,1>")
        tile = "_ZN7tessera4cuda5sm1206kernelINS0_12NativeFp4MmaENS1_4TileILi256ELi128EEELb1EEEvNS0_6hopper4MapsE"
        self.assertEqual(sass.short_name(tile), "sm120<256,128,1>")
        attend = "_ZN7tessera4cuda11attend_tileILi256ELNS0_12TileOperandsE1EEEvNS0_10PromptArgsE"
        self.assertEqual(sass.short_name(attend), "attend_tile<256,1>")

    def test_step_leaves_out_rare_code(self) -> None:
        """Guards against steps that count masks, or products of an inner loop once."""
        code = [instruction(text) for text in (
            "BAR.SYNC 0x0", "LDSM R0, [R1]", "HMMA.16816.F32 R4, R0, R2, R4", "@P0 BRA `(.L_x_1)",
            "@!P1 BRA `(.L_x_2)", "FSEL R4, R4, R5", "FSEL R6, R6, R7", "HMMA.16816.F32 R4, R0, R2, R4",
            "@P2 BRA `(.L_x_0)")]
        loop = steps.step_counts(steps.steps_of(code, {".L_x_0": 0, ".L_x_1": 1, ".L_x_2": 7}, 4)[0])
        self.assertEqual((loop.mmas, loop.instructions, loop.shared), (5, 1 + 4 * 3 + 3, {"LDSM": 4}))

    def test_step_takes_the_usual_way(self) -> None:
        """Guards against steps that follow softcaps, or copies of pages that are seen in part."""
        labels = {".L_x_0": 0, ".L_x_1": 4, ".L_x_2": 5, ".L_x_3": 8, ".L_x_4": 9}
        code = [instruction(text) for text in (
            "HMMA.16816.F32 R4, R0, R2, R4", "@P0 BRA `(.L_x_1)", "MUFU.TANH R4, R4", "BRA `(.L_x_2)",
            "FMUL R4, R4, R5", "@P1 BRA `(.L_x_3)", "LDGSTS [R2], [R3]", "BRA `(.L_x_4)",
            "LDGSTS [R2], [R3]", "@P3 BRA `(.L_x_0)")]
        shorter = code[:2] + [instruction("FMUL R8, R8, R9")] + code[2:]
        places = {name: at + (at > 2) for name, at in labels.items()}
        self.assertNotIn("MUFU.TANH R4, R4", [i.text for i in steps.steps_of(shorter, places, 1)[0]])
        code[6] = instruction("@P2 BRA `(.L_x_5)")  # one way goes round: by itself
        body = steps.steps_of(code, labels | {".L_x_5": 6}, 1)[0]
        self.assertIn("LDGSTS [R2], [R3]", [i.text for i in body])
        self.assertNotIn("@P2 BRA `(.L_x_5)", [i.text for i in body])

    def test_changed_code_is_noticed(self) -> None:
        """Guards against stored counts of code that is no longer built."""
        stored = sass.load(predict.COUNTS)
        name, loop = next(iter(stored.items()))
        self.assertEqual(predict.compare(stored, stored), [])
        longer = dataclasses.replace(loop, instructions=2 * loop.instructions)
        self.assertTrue(predict.compare(stored | {name: longer}, stored))
        self.assertTrue(predict.compare(stored | {"new": loop}, stored))
        self.assertTrue(predict.compare({other: stored[other] for other in stored if other != name}, stored))


class Simulation(unittest.TestCase):
    """Steps whose clocks can be counted by hand."""

    rates = simulate.RATES["hopper"]

    def clocks(self, body: list[sass.Instruction], warps: int = 1, blocks: int = 1) -> float:
        return simulate.step_clocks(body, warps, blocks, self.rates)

    def test_a_warp_alone(self) -> None:
        """Guards against stalls or scoreboards that do not count."""
        load, use = instruction("LDSM.16.M88.4 R0, [R1]", stall=2, sets=3), instruction("IADD3 R2, R0", stall=5, waits=1 << 3)
        self.assertEqual(self.clocks([load, use]), 4 + self.rates.matrices + 5)
        self.assertEqual(self.clocks([load, instruction("IADD3 R2, R3", stall=5)]), 7)
        self.assertEqual(self.clocks([instruction("@!PT LDS RZ, [RZ]")]), 1)

    def test_what_warps_share(self) -> None:
        """Guards against tensor cores, slots or shared memory that every warp has for itself."""
        product = [instruction("HMMA.16816.F32 R4, R0, R2, R4")] * 8
        self.assertAlmostEqual(self.clocks(product), 8 * self.rates.product)
        self.assertAlmostEqual(self.clocks(product, warps=4), 8 * self.rates.product)
        self.assertAlmostEqual(self.clocks(product, warps=4, blocks=2), 16 * self.rates.product, delta=1)
        self.assertAlmostEqual(self.clocks([instruction("LDSM.16.M88.4 R0, [R1]", sets=0, waits=1)] * 16, warps=16), 16 * 16 * 4, delta=64)
        self.assertAlmostEqual(self.clocks([instruction("MUFU.EX2 R0, R1")] * 4, warps=4), 32, delta=1)
        self.assertAlmostEqual(self.clocks([instruction("FADD R0, R1, R2")] * 4, warps=8), 8, delta=1)

    def test_copies_and_barriers(self) -> None:
        """Guards against waits that end before copies have come, or before the last warp is there."""
        copy = [instruction("LDGSTS.E.BYPASS.128 [R0], [R2.64]"), instruction("LDGDEPBAR"), instruction("DEPBAR.LE SB0, 0x0")]
        self.assertAlmostEqual(self.clocks(copy), 512 / self.rates.l2_bytes + self.rates.second_level, delta=4)
        meet = [instruction("BAR.SYNC.DEFER_BLOCKING 0x0")]
        self.assertAlmostEqual(self.clocks(meet, warps=4), self.rates.barrier, delta=2)
        # Two warps a quarter, whose products take turns: nobody goes on before all have made theirs.
        product = [instruction("HMMA.16816.F32 R4, R0, R2, R4")] * 8
        self.assertAlmostEqual(self.clocks(product + meet, warps=8), 15 * self.rates.product + 1 + self.rates.barrier, delta=2)


if __name__ == "__main__":
    unittest.main()
