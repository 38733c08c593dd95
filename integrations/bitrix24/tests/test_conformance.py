"""What every connector is asked, asked of Bitrix24."""

from collections.abc import Sequence
from pathlib import Path

from hub.contract import Answer, Request
from hub.testing import Reply, answer
from hub.testing.conformance import UNKNOWN_CODE, ConnectorConformance
from integrations.bitrix24.connector import PAGE, Bitrix24Connector
from integrations.bitrix24.errors import UNCODED, UNREADABLE
from integrations.bitrix24.tests import samples


class TestBitrix24(ConnectorConformance):
    connector_class = Bitrix24Connector
    settings = samples.SETTINGS
    secrets = {"webhook": samples.SECRET}
    fixtures = Path(__file__).parent / "fixtures"
    sample_requests = {
        request.action: request for request in (samples.CREATE, samples.UPDATE, samples.DELETE)
    }

    def error_answer(self, code: str) -> Answer:
        match code.casefold():
            case folded if folded == UNREADABLE:
                return answer(502, body=b"<html>Bad gateway</html>")
            case folded if folded == UNCODED:
                return samples.error_answer("", 500)
        return samples.error_answer(code)

    def unknown_code_answer(self) -> Answer:
        return samples.error_answer(UNKNOWN_CODE)

    def done_answers(self, request: Request) -> Sequence[Reply]:
        match request.action:
            case "contact.create":
                return [samples.item_answer()]
            case "contact.update":
                return [
                    samples.item_answer(name="Anna"),
                    samples.item_answer(originVersion=str(request.version)),
                ]
        return [answer(200, {"result": [], "time": {}})]

    def found_answers(self, request: Request, count: int) -> Sequence[Reply]:
        return [samples.list_answer(*(samples.item(id=415 + place) for place in range(count)))]

    def incomplete_answers(self, request: Request) -> Sequence[Reply]:
        page = samples.list_answer(*(samples.item(id=1 + place) for place in range(PAGE)))
        return [page, page]
